"""Frames on a connected Unix socket: a 4-byte big-endian length, then that many bytes; and input made of them."""

import asyncio
import socket

from google.protobuf.message import Message

from sandbox.v1 import channel_pb2 as wire

MAX_FRAME_BYTES = 1024 * 1024 + 64 * 1024  # as in proto/sandbox/v1/channel.proto
# Where data is ready, a receive does not suspend: a peer that sends all the time would keep the event loop to itself.
_STEPS_AT_ONCE = 64


class BrokenFrame(Exception):
    """The peer violated the protocol; the connection is unusable."""


class FrameSocket:
    """Reads and writes frames, with one reader and one writer at a time. An idle socket has no buffer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""  # received, and read up to `_start`: a copy for each of many small frames would cost more
        self._start = 0
        self._large = bytearray()
        self._steps = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._rest) - self._start + len(self._large)

    async def read(self) -> bytes | None:
        """Return the next frame, None at the end of the stream. BrokenFrame if it is too long or truncated."""
        frame = await self.read_view()
        self.drop_buffer()
        return None if frame is None else bytes(frame)

    async def step(self) -> None:
        """Count a frame or a receive; let the event loop run after each 64."""
        self._steps += 1
        if self._steps % _STEPS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def drop_buffer(self) -> None:
        """Drop the buffer of read_view(), at the end of a stream."""
        self._large = bytearray()

    async def read_view(self) -> memoryview | None:
        """Return the next frame of a stream without a copy, valid until the next call; otherwise as read()."""
        await self.step()
        loop = asyncio.get_running_loop()
        data, start = self._rest, self._start
        self._rest, self._start = b"", 0
        while len(data) - start < 4:
            more = await loop.sock_recv(self.connection, 64 * 1024)
            if not more and len(data) > start:
                raise BrokenFrame("a part of a frame")
            if not more:
                return None
            data, start = data[start:] + more, 0
        begin = start + 4
        size = int.from_bytes(data[start:begin], "big")
        if size > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a frame of {size} bytes; {MAX_FRAME_BYTES} are allowed")
        if len(data) >= begin + size:
            if len(data) > begin + size:
                self._rest, self._start = data, begin + size
            return memoryview(data)[begin : begin + size]
        # Receives exactly what is missing: the next frame stays in the socket.
        if len(self._large) < size:
            self._large = bytearray(size)
        frame = memoryview(self._large)[:size]
        done = len(data) - begin
        frame[:done] = memoryview(data)[begin:]
        while done < size:
            await self.step()
            count = await loop.sock_recv_into(self.connection, frame[done:])
            if not count:
                raise BrokenFrame("a part of a frame")
            done += count
        return frame

    async def send(self, message: Message) -> None:
        """Send one message; waits while the peer does not read."""
        body = message.SerializeToString()
        if len(body) > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a reply of {len(body)} bytes; {MAX_FRAME_BYTES} are allowed")
        await asyncio.get_running_loop().sock_sendall(self.connection, len(body).to_bytes(4, "big") + body)


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


def only_field(frame: memoryview, *numbers: int) -> memoryview | None:
    """Return the bytes field that fills a frame, in the messages that it is nested in; None for any other frame."""
    for number in numbers:
        if not frame or frame[0] != (number << 3 | 2):
            return None
        size = shift = 0
        for start in range(2, min(6, len(frame) + 1)):
            size |= (frame[start - 1] & 0x7F) << shift
            shift += 7
            if frame[start - 1] < 0x80:
                break
        else:
            return None
        if start + size != len(frame):
            return None
        frame = frame[start:]
    return frame


DATA_LIMIT_BYTES = 1024 * 1024


class InputStream:
    """Bytes from the caller, until its end frame."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._ended = False

    async def read_piece(self) -> memoryview | None:
        """Return the next bytes, without a copy and valid until the next call; None at the end.

        BrokenFrame if the caller violates the protocol or goes away.
        """
        if self._ended:
            return None
        frame = await self._frames.read_view()
        if frame is None:
            raise BrokenFrame("the connection ended before the input did")
        data = only_field(frame, wire.Input.DATA_FIELD_NUMBER)
        if data is None:
            # The end, or another encoding: left to protobuf.
            message = wire.Input.FromString(bytes(frame))
            member = message.WhichOneof("input")
            if member == "end":
                self._ended = True
                self._frames.drop_buffer()
                return None
            data = memoryview(message.data) if member == "data" else None
        if data is None or len(data) > DATA_LIMIT_BYTES:
            raise BrokenFrame(f"an Input frame must have end, or data of {DATA_LIMIT_BYTES} bytes at most")
        return data

    async def discard(self) -> None:
        """Read to the end, so that the next frame is the next request."""
        while await self.read_piece() is not None:
            pass
