"""The first bytes of a client's connection, read as far as a protocol asks for them and no further."""

import asyncio
import socket
from contextlib import suppress
from typing import Never

from sandbox.daemon.relay import readable

_PIECE_BYTES = 16 * 1024
_LINGER_S = 1.0
_LINGER_BYTES = 1024 * 1024


class EndOfConnection(Exception):
    """The client closed the connection before it said what it wants."""


class ClientBytes:
    """Reads a socket that does not block. `rest` is what was received and not taken yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    async def more(self) -> None:
        """Receive once; who is cancelled loses nothing. Raises EndOfConnection and OSError."""
        while True:
            try:
                piece = self.connection.recv(_PIECE_BYTES)
            except BlockingIOError:
                await readable(self.connection)
                continue
            if not piece:
                raise EndOfConnection
            self.rest += piece
            return

    async def exactly(self, size: int) -> bytes:
        while len(self.rest) < size:
            await self.more()
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    async def until(self, end: bytes, limit: int) -> bytes:
        """Take everything up to `end`, which is included. Raises ValueError when it is not within the limit."""
        while end not in self.rest:
            if len(self.rest) > limit:
                raise ValueError(f"more than {limit:,} bytes")
            await self.more()
        return await self.exactly(self.rest.index(end) + len(end))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.connection, data)

    async def watch(self) -> Never:
        """Raise EndOfConnection or OSError when the client leaves. Reads ahead a piece, and no further."""
        while len(self.rest) < _PIECE_BYTES:
            await self.more()
        await asyncio.Event().wait()
        raise AssertionError  # unreachable

    async def linger(self) -> None:
        """Say that nothing follows, and let it read what was sent: closing on unread bytes would take that back."""
        if self.connection.fileno() < 0:
            return
        with suppress(OSError, TimeoutError, EndOfConnection):
            self.connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                left = _LINGER_BYTES
                while left > 0:
                    self.rest = b""
                    await self.more()
                    left -= len(self.rest)
