"""One connection to a daemon: length-prefixed frames over a Unix socket, bounded in both directions.

What comes from the daemon is hostile. A frame that is too long, cut short or not a Reply is DaemonLost; the buffer
never holds more than one frame and one receive. Raw sockets instead of asyncio streams save a task and a copy a call.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from google.protobuf.message import DecodeError

from sandbox.errors import DaemonLost
from sandbox.v1 import channel_pb2 as pb

# As proto/sandbox/v1/channel.proto says.
MAX_FRAME_BYTES = 1024 * 1024 + 64 * 1024
_LENGTH = struct.Struct(">I")
_RECEIVE_BYTES = 64 * 1024
_SEND_BUFFER_BYTES = 1024 * 1024


class Connection:
    """A connected socket that carries one call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self._frame = bytearray()
        self._roomy = False

    async def send(self, message: pb.Request | pb.Input) -> None:
        """Send a frame; waits while the daemon does not read."""
        rest = self.send_at_once(message)
        if rest:
            await self.send_rest(rest)

    def send_at_once(self, message: pb.Request | pb.Input) -> memoryview:
        """Send as much of a frame as there is room for and return the rest, which goes to send_rest()."""
        payload = message.SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
        frame = memoryview(_LENGTH.pack(len(payload)) + payload)
        try:
            return frame[self._socket.send(frame) :]
        except BlockingIOError:
            return frame
        except OSError as error:
            raise DaemonLost(f"the sandbox daemon closed the connection ({error.strerror or error})") from error

    async def send_rest(self, rest: memoryview) -> None:
        """Send what there was no room for; waits while the daemon does not read."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, rest)
        except OSError as error:
            raise DaemonLost(f"the sandbox daemon closed the connection ({error.strerror or error})") from error

    async def send_data(self, data: memoryview) -> None:
        """Send Input(data=...), 1 MiB at most, without a copy of the bytes."""
        head = field_head(pb.Input.DATA_FIELD_NUMBER, len(data))
        head = _LENGTH.pack(len(head) + len(data)) + head
        loop = asyncio.get_running_loop()
        if not self._roomy:
            # With the usual 208 KiB a frame would take several turns of both ends.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            self._roomy = True
        try:
            try:
                sent = self._socket.sendmsg((head, data))
            except BlockingIOError:
                sent = 0
            if sent < len(head):
                await loop.sock_sendall(self._socket, head[sent:])
                sent = len(head)
            if sent < len(head) + len(data):
                await loop.sock_sendall(self._socket, data[sent - len(head) :])
        except OSError as error:
            raise DaemonLost(f"the sandbox daemon closed the connection ({error.strerror or error})") from error

    async def receive(self) -> pb.Reply:
        """Return the next frame; raises DaemonLost when there is none or it is not one."""
        frame = bytes(await self._receive_frame())
        self._frame = bytearray()
        return _reply(frame)

    async def receive_piece(self) -> bytes | pb.Reply:
        """Return the bytes of the next frame when it is a Chunk as our daemon packs it, else the frame as receive()."""
        frame = await self._receive_frame()
        # Two fields around the bytes: Reply.chunk, Chunk.data.
        outer = field_size(frame, 0, pb.Reply.CHUNK_FIELD_NUMBER)
        if outer is not None and outer[0] + outer[1] == len(frame):
            inner = field_size(frame, outer[0], pb.Chunk.DATA_FIELD_NUMBER)
            if inner is not None and inner[0] + inner[1] == len(frame):
                return bytes(frame[inner[0] :])
        # A stream is over; between calls a connection holds no more memory than it must.
        self._frame = bytearray()
        return _reply(bytes(frame))

    async def _receive_frame(self) -> memoryview:
        """Return the next frame without its length; good until the next call."""
        while len(self._buffer) < _LENGTH.size:
            self._buffer += await self._receive_some()
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise DaemonLost(f"the sandbox daemon announced a frame of {length} bytes, over the limit")
        end = _LENGTH.size + length
        if len(self._buffer) >= end:
            frame = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            return memoryview(frame)
        # What is missing goes where it belongs, and no further: the frame after it stays in the socket.
        frame_view = memoryview(self._large_buffer(length))[:length]
        got = len(self._buffer) - _LENGTH.size
        frame_view[:got] = memoryview(self._buffer)[_LENGTH.size :]
        self._buffer = bytearray()
        while got < length:
            got += await self._receive_into(frame_view[got:])
        return frame_view

    def _large_buffer(self, length: int) -> bytearray:
        # The daemon announces lengths at will; memory is taken for what a stream of chunks really needs.
        if len(self._frame) < length:
            self._frame = bytearray(length)
        return self._frame

    async def _receive_some(self) -> bytes:
        try:
            data = await asyncio.get_running_loop().sock_recv(self._socket, _RECEIVE_BYTES)
        except OSError as error:
            raise DaemonLost(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
        if not data:
            raise DaemonLost("the sandbox daemon closed the connection before it answered")
        return data

    async def _receive_into(self, view: memoryview) -> int:
        try:
            count = await asyncio.get_running_loop().sock_recv_into(self._socket, view)
        except OSError as error:
            raise DaemonLost(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
        if not count:
            raise DaemonLost("the sandbox daemon closed the connection before it answered")
        return count

    def idle(self) -> bool:
        """Return whether the connection is open and silent, as it must be between calls."""
        if self._buffer:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # Readable between calls: the daemon hung up, or it says something that nobody asked.
        return False

    def close(self) -> None:
        """Close; a call in flight on it is cancelled by the daemon. Safe to call twice."""
        self._socket.close()


def _reply(frame: bytes) -> pb.Reply:
    try:
        return pb.Reply.FromString(frame)
    except DecodeError as error:
        raise DaemonLost("the sandbox daemon sent a frame that is no Reply") from error


def field_head(number: int, size: int) -> bytes:
    """Return what protobuf puts before a field of bytes: its tag, and its size in groups of seven bits."""
    head = bytearray((number << 3 | 2,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def field_size(frame: memoryview, at: int, number: int) -> tuple[int, int] | None:
    """Return where the bytes of the field at `at` begin and how many they are; None when it is not that field."""
    if at >= len(frame) or frame[at] != (number << 3 | 2):
        return None
    size = shift = 0
    for place in range(at + 1, min(at + 5, len(frame))):
        size |= (frame[place] & 0x7F) << shift
        shift += 7
        if frame[place] < 0x80:
            return place + 1, size
    return None
