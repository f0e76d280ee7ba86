"""Frames on a connected Unix socket: a 4-byte big-endian length, then that many bytes."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

MAX_FRAME_BYTES = 1024 * 1024 + 64 * 1024  # as in proto/sandbox/v1/channel.proto
_RECEIVE_BYTES = 64 * 1024


class BrokenFrame(Exception):
    """The peer violated the protocol; the connection is unusable."""


class Serializable(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


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

    async def send(self, message: Serializable) -> None:
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
