"""One connection to a daemon: length-prefixed frames over a Unix socket, bounded in both directions.

The daemon is hostile. A frame that is too long, truncated or not a Reply is DaemonLost; the buffer never contains more
than one frame and one receive. Raw sockets save a task and a copy per call compared to asyncio streams.
"""

import asyncio
import socket
from collections.abc import Awaitable
from typing import TypeVar

from google.protobuf.message import DecodeError

from sandbox.daemon.frames import MAX_FRAME_BYTES, BrokenFrame, FrameSocket, field_head, only_field, send_around
from sandbox.errors import DaemonLost
from sandbox.v1 import channel_pb2 as pb

_Frame = TypeVar("_Frame", bytes, memoryview)


class Connection:
    """A connected socket that carries one call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._frames = FrameSocket(connected)
        self._send_buffer_grown = False

    async def send(self, message: pb.Request | pb.Input) -> None:
        rest = self.send_at_once(message)
        if rest:
            await self.send_rest(rest)

    def send_at_once(self, message: pb.Request | pb.Input) -> memoryview:
        """Send what fits into the socket's buffer and return the rest, for send_rest()."""
        payload = message.SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
        frame = memoryview(len(payload).to_bytes(4, "big") + payload)
        try:
            return frame[self._socket.send(frame) :]
        except BlockingIOError:
            return frame
        except OSError as error:
            raise _closed(error) from error

    async def send_rest(self, rest: memoryview) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, rest)
        except OSError as error:
            raise _closed(error) from error

    async def send_data(self, data: memoryview) -> None:
        """Send Input(data=...), 1 MiB at most, without a copy of the bytes."""
        if not self._send_buffer_grown:
            # The default of 208 KiB would split a frame into several round trips of both event loops.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
            self._send_buffer_grown = True
        try:
            await send_around(self._socket, field_head(pb.Input.DATA_FIELD_NUMBER, len(data)), data)
        except OSError as error:
            raise _closed(error) from error

    async def receive(self) -> pb.Reply:
        """Return the next frame; raises DaemonLost when there is none or it is malformed."""
        return _reply(await self._received(self._frames.read()))

    async def receive_piece(self) -> bytes | pb.Reply:
        """Return the bytes of the next frame if it is a Chunk as our daemon encodes it, else the frame as receive()."""
        frame = await self._received(self._frames.read_view())
        data = only_field(frame, pb.Reply.CHUNK_FIELD_NUMBER, pb.Chunk.DATA_FIELD_NUMBER)
        if data is not None:
            return bytes(data)
        self._frames.drop_buffer()
        return _reply(bytes(frame))

    async def _received(self, reading: Awaitable[_Frame | None]) -> _Frame:
        try:
            frame = await reading
        except BrokenFrame as error:
            raise DaemonLost(f"the sandbox daemon sent {error}") from error
        except OSError as error:
            raise DaemonLost(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
        if frame is None:
            raise DaemonLost("the sandbox daemon closed the connection before it answered")
        return frame

    def idle(self) -> bool:
        """Return whether the connection is open and silent, as it must be between calls."""
        if self._frames.buffered_bytes:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # Readable between calls: the daemon hung up or sends unsolicited data.
        return False

    def close(self) -> None:
        """Close; a call in flight on it is cancelled by the daemon. Safe to call twice."""
        self._socket.close()


def _closed(error: OSError) -> DaemonLost:
    return DaemonLost(f"the sandbox daemon closed the connection ({error.strerror or error})")


def _reply(frame: bytes) -> pb.Reply:
    try:
        return pb.Reply.FromString(frame)
    except DecodeError as error:
        raise DaemonLost("the sandbox daemon sent a frame that is no Reply") from error
