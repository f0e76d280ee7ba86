"""Frames on a connected Unix socket: a 4-byte big-endian length, then that many bytes; and input made of them."""

from __future__ import annotations

import asyncio
import socket

from google.protobuf.message import Message

from sandbox.v1 import channel_pb2 as wire

MAX_FRAME_BYTES = 1024 * 1024 + 64 * 1024  # as in proto/sandbox/v1/channel.proto
_RECEIVE_BYTES = 64 * 1024


class BrokenFrame(Exception):
    """The peer violated the protocol; the connection is unusable."""


class FrameSocket:
    """Reads and writes frames, with one reader and one writer at a time. An idle socket has no buffer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._rest = b""

    async def read(self) -> bytes | None:
        """Return the next frame, None at the end of the stream. BrokenFrame if it is too long or truncated."""
        data = self._rest
        self._rest = b""
        while len(data) < 4:
            more = await self._loop.sock_recv(self.connection, _RECEIVE_BYTES)
            if not more:
                if data:
                    raise BrokenFrame("the stream ended inside a frame")
                return None
            data += more
        size = int.from_bytes(data[:4], "big")
        if size > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a frame of {size} bytes; {MAX_FRAME_BYTES} are allowed")
        if len(data) >= 4 + size:
            self._rest = data[4 + size :]
            return data[4 : 4 + size]
        frame = bytearray(size)
        view = memoryview(frame)
        done = len(data) - 4
        view[:done] = data[4:]
        while done < size:
            count = await self._loop.sock_recv_into(self.connection, view[done:])
            if not count:
                raise BrokenFrame("the stream ended inside a frame")
            done += count
        return bytes(frame)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive into the beginning of a buffer; return the number of bytes, 0 at the end of the stream."""
        if not self._rest:
            return await self._loop.sock_recv_into(self.connection, buffer)
        count = min(len(self._rest), len(buffer))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def put_back(self, data: bytes) -> None:
        """Return bytes from receive_into() to the front of the stream."""
        self._rest = data + self._rest

    async def send(self, message: Message) -> None:
        """Send one message; waits while the peer does not read."""
        body = message.SerializeToString()
        if len(body) > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a reply of {len(body)} bytes; {MAX_FRAME_BYTES} are allowed")
        await self._loop.sock_sendall(self.connection, len(body).to_bytes(4, "big") + body)


async def send_around(connection: socket.socket, head: bytes, data: memoryview) -> None:
    """Send a frame of `head` and `data`, without a copy of the data."""
    loop = asyncio.get_running_loop()
    head = (len(head) + len(data)).to_bytes(4, "big") + head
    try:
        sent = connection.sendmsg((head, data))
    except BlockingIOError:
        sent = 0
    if sent < len(head):
        await loop.sock_sendall(connection, head[sent:])
        sent = len(head)
    if sent < len(head) + len(data):
        await loop.sock_sendall(connection, data[sent - len(head) :])


def field_head(number: int, size: int) -> bytes:
    """Return what protobuf puts before a bytes field: its tag, then its size as a varint."""
    head = bytearray((number << 3 | 2,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def field_size(frame: memoryview, at: int, number: int) -> tuple[int, int] | None:
    """Return the start and size of the bytes field at `at`; None if it is another field."""
    if at >= len(frame) or frame[at] != (number << 3 | 2):
        return None
    size = shift = 0
    for index in range(at + 1, min(at + 5, len(frame))):
        size |= (frame[index] & 0x7F) << shift
        shift += 7
        if frame[index] < 0x80:
            return index + 1, size
    return None


DATA_LIMIT_BYTES = 1024 * 1024
# The buffer of read_piece().
_BUFFER_BYTES = 512 * 1024


class InputStream:
    """Bytes from the caller, until its end frame."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._ended = False
        # For read_piece(): received bytes that were not returned yet, and how many more bytes are the frame's data.
        self._buffer = memoryview(b"")
        self._start = self._end = self._left = 0

    async def read(self) -> bytes | None:
        """Return the next bytes, None at the end. BrokenFrame if the caller violates the protocol or goes away."""
        if self._ended:
            return None
        frame = await self._frames.read()
        if frame is None:
            raise BrokenFrame("the connection ended before the input did")
        message = wire.Input.FromString(frame)
        member = message.WhichOneof("input")
        if member == "end":
            self._ended = True
            return None
        if member != "data" or len(message.data) > DATA_LIMIT_BYTES:
            raise BrokenFrame(f"an Input frame must have end, or data of {DATA_LIMIT_BYTES} bytes at most")
        return message.data

    async def read_piece(self) -> memoryview | None:
        """Return the next bytes as they arrive, without a copy; valid until the next call. Otherwise as read()."""
        while not self._ended:
            if self._left and self._start < self._end:
                stop = min(self._end, self._start + self._left)
                piece = self._buffer[self._start : stop]
                self._left -= len(piece)
                self._start = stop
                return piece
            if not self._left:
                head = _data_head(self._buffer[self._start : self._end])
                if head is None:
                    # The end, or another encoding: left to protobuf.
                    self._frames.put_back(bytes(self._buffer[self._start : self._end]))
                    self._start = self._end = 0
                    data = await self.read()
                    return None if data is None else memoryview(data)
                if head:
                    head_bytes, self._left = head
                    self._start += head_bytes
                    continue
            await self._receive()
        return None

    async def _receive(self) -> None:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        kept = self._end - self._start
        self._buffer[:kept] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, kept
        count = await self._frames.receive_into(self._buffer[kept:])
        if not count:
            raise BrokenFrame("the connection ended before the input did")
        self._end += count

    async def discard(self) -> None:
        """Read to the end, so that the next frame is the next request."""
        while await self.read_piece() is not None:
            pass


def _data_head(received: memoryview) -> tuple[int, int] | tuple[()] | None:
    """Return the sizes of a data frame's head and its data; () if more bytes are needed, None for any other frame."""
    # A data frame is a length, the tag of data, the data's length as a varint, and the data.
    frame_bytes = int.from_bytes(received[:4], "big")
    if len(received) < 4 + min(frame_bytes, 4):
        return ()
    head = field_size(received, 4, wire.Input.DATA_FIELD_NUMBER)
    whole = head is not None and 0 < head[1] <= DATA_LIMIT_BYTES and head[0] - 4 + head[1] == frame_bytes
    return head if whole else None
