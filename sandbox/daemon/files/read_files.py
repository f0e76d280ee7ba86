"""Reads files: as a stream of bytes, or as pages of lines."""

import asyncio
import codecs
import os
import socket

from sandbox.daemon.failures import check_range, fault_at, invalid_argument
from sandbox.daemon.frames import FrameSocket, field_head, send_around
from sandbox.daemon.paths import Place, closing
from sandbox.v1 import channel_pb2 as wire

CHUNK_BYTES = 512 * 1024
LINES_LIMIT = 100_000
LINES_LIMIT_BYTES = 1024 * 1024
_OFFSET_LIMIT = 2**63 - 1


async def read(request: wire.ReadRequest, frames: FrameSocket, *, one_name: bool = False) -> None:
    """Send the bytes in the final frame if they fit, otherwise as chunks before it."""
    if request.offset > _OFFSET_LIMIT:
        raise invalid_argument(f"offset is {request.offset}; no file is larger than {_OFFSET_LIMIT} bytes")
    with Place(request.path) as place:
        fd, state = place.open_regular(one_name=one_name)
        path = place.path
    with closing(fd):
        wanted = max(0, state.st_size - request.offset)
        if request.length:
            wanted = min(wanted, request.length)
        reply = wire.ReadReply(size_bytes=state.st_size)
        if wanted <= 1024 * 1024:
            reply.data = _read_at(fd, wanted, request.offset, path)
        else:
            await _send_chunks(frames, fd, request.offset, wanted, path)
    await frames.send(wire.Reply(read=reply))


async def _send_chunks(frames: FrameSocket, fd: int, offset: int, wanted: int, path: str) -> None:
    # A single buffer between file and socket: each further copy costs a tenth of the speed.
    buffer = memoryview(bytearray(CHUNK_BYTES))
    # The default of 208 KiB would split a chunk into several round trips of both event loops.
    frames.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
    while wanted > 0:
        with fault_at(path):
            got = os.preadv(fd, [buffer[: min(CHUNK_BYTES, wanted)]], offset)
        if not got:
            return  # the file was truncated
        await send_around(frames.connection, _chunk_head(got), buffer[:got])
        offset += got
        wanted -= got
        await asyncio.sleep(0)


def _chunk_head(size: int) -> bytes:
    """Return the encoding of Reply(chunk=Chunk(data=...)) before the bytes."""
    inner = field_head(wire.Chunk.DATA_FIELD_NUMBER, size)
    return field_head(wire.Reply.CHUNK_FIELD_NUMBER, len(inner) + size) + inner


def _read_at(fd: int, length: int, offset: int, path: str) -> bytes:
    with fault_at(path):
        data = os.pread(fd, length, offset)
        while 0 < len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
            data += more
    return data


async def read_lines(request: wire.ReadLinesRequest, *, one_name: bool = False) -> wire.Reply:
    """Return a page of lines, in constant memory."""
    limit_bytes = request.limit_bytes
    check_range("limit", request.limit, LINES_LIMIT, " lines")
    check_range("limit_bytes", limit_bytes, LINES_LIMIT_BYTES)
    with Place(request.path) as place:
        fd, state = place.open_regular(one_name=one_name)
        path = place.path
    with closing(fd):
        start = await _line_start(fd, request.offset, path)
        # One more byte shows whether anything follows.
        data = _read_at(fd, limit_bytes + 1, start, path)
    end = _end_of_lines(data, request.limit)
    cut = end > limit_bytes
    page = data[: min(end, limit_bytes)]
    if cut:
        page = _without_started_character(page)
        # The page may happen to end with a line.
        cut = not page.endswith(b"\n")
    next_byte = start + len(page)
    return wire.Reply(
        read_lines=wire.ReadLinesReply(
            data=page,
            lines=page.count(b"\n") + (bool(page) and not page.endswith(b"\n")),
            more=len(page) < len(data),
            binary=_is_binary(page, complete=not cut),
            size_bytes=state.st_size,
            next_byte=next_byte,
            cut=cut,
        )
    )


async def _line_start(fd: int, skip_lines: int, path: str) -> int:
    """Return the offset of the line after `skip_lines` lines, or the end of the file."""
    position = 0
    while skip_lines:
        data = _read_at(fd, CHUNK_BYTES, position, path)
        if not data:
            break
        newlines = data.count(b"\n")
        if newlines >= skip_lines:
            return position + _end_of_lines(data, skip_lines)
        skip_lines -= newlines
        position += len(data)
        await asyncio.sleep(0)
    return position


def _end_of_lines(data: bytes, lines: int) -> int:
    end = 0
    for _ in range(lines):
        newline = data.find(b"\n", end)
        if newline < 0:
            return len(data)
        end = newline + 1
    return end


def _without_started_character(page: bytes) -> bytes:
    """Return the page without an incomplete UTF-8 character at its end, unless it has nothing else."""
    for back in range(1, min(4, len(page))):
        byte = page[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return page[:-back] if needed > back and len(page) > back else page
    return page


def _is_binary(page: bytes, *, complete: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(page, final=complete)
    except UnicodeDecodeError:
        return True
    return b"\0" in page
