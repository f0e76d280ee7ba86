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


class Connection:
    """A connected socket that carries one call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()

    async def send(self, message: pb.Request | pb.Input) -> None:
        """Send a frame; waits while the daemon does not read."""
        payload = message.SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, _LENGTH.pack(len(payload)) + payload)
        except OSError as error:
            raise DaemonLost(f"the sandbox daemon closed the connection ({error.strerror or error})") from error

    async def receive(self) -> pb.Reply:
        """Return the next frame; raises DaemonLost when there is none or it is not one."""
        await self._fill(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise DaemonLost(f"the sandbox daemon announced a frame of {length} bytes, over the limit")
        end = _LENGTH.size + length
        await self._fill(end)
        frame = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            return pb.Reply.FromString(frame)
        except DecodeError as error:
            raise DaemonLost("the sandbox daemon sent a frame that is no Reply") from error

    async def _fill(self, wanted_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        while len(self._buffer) < wanted_bytes:
            try:
                data = await loop.sock_recv(self._socket, max(_RECEIVE_BYTES, wanted_bytes - len(self._buffer)))
            except OSError as error:
                raise DaemonLost(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
            if not data:
                raise DaemonLost("the sandbox daemon closed the connection before it answered")
            self._buffer += data

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
