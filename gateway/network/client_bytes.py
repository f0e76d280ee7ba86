"""The first bytes of a client's connection, read as far as a protocol asks for them and no further."""

import asyncio
import socket
from contextlib import suppress

_PIECE_BYTES = 16 * 1024
_LINGER_S = 5.0


class EndOfConnection(Exception):
    """The client closed the connection before it said what it wants."""


class ClientBytes:
    """Reads a socket that does not block. `rest` is what was received and not taken yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    async def more(self) -> None:
        """Receive once. Raises EndOfConnection and OSError."""
        piece = await asyncio.get_running_loop().sock_recv(self.connection, _PIECE_BYTES)
        if not piece:
            raise EndOfConnection
        self.rest += piece

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

    async def read_to_the_end(self) -> None:
        """Send no more, and wait until the client has read what was sent: closing at once could take that back."""
        with suppress(OSError, TimeoutError):
            self.connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while await asyncio.get_running_loop().sock_recv(self.connection, _PIECE_BYTES):
                    pass

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.connection, data)
