"""A TLS connection over a TCP socket, as bytes: with half-close, and flow control in each direction.

asyncio's own TLS cannot end one direction and go on with the other, as a tunnel of the channel must. TLS 1.3 can: a
close_notify ends what its sender sends, and nothing else.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Any

_PIECE_BYTES = 128 * 1024
_RECORD_BYTES = 16 * 1024
# What may wait to be sent because of what was received: a peer that asks for new keys and reads nothing is cut.
_UNSENT_LIMIT_BYTES = 1024 * 1024


class BrokenStream(ConnectionResetError):
    """The peer cut the connection or violated the protocol: what was received may not be all that was sent."""


class TlsStream:
    """One connection, with one reader and one writer at a time. An idle stream has no buffer of its own."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self.connection = connection
        self.ended = False  # whether the peer has sent its close_notify
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._early = b""  # decrypted before it was asked for
        self._sending = asyncio.Lock()

    @property
    def protocol(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the peer's certificate, of whatever kind, each as `kind:value`; after the handshake."""
        names: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return tuple(f"{kind}:{value}" for kind, value in names)

    async def handshake(self) -> None:
        """Shake hands; raises ssl.SSLError, and BrokenStream when the peer hangs up."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
                await asyncio.sleep(0)  # a peer that sends all the time makes nothing wait
            except ssl.SSLError:
                await self._flush()  # the alert that says why
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes | memoryview:
        """Return what has arrived, empty at the peer's end; raises BrokenStream without that end, and ssl.SSLError."""
        received = False
        while True:
            if self._early:
                early, self._early = self._early, b""
                return early
            if self.ended:
                return b""
            piece = self._decrypted()
            if self._outgoing.pending and not self._sending.locked():
                await self._flush()
            if piece or self.ended:
                return piece
            if received:
                await asyncio.sleep(0)  # parts of records, or those without data, may come all the time
            await self._receive()
            received = True

    async def write(self, data: memoryview) -> None:
        """Send all of it; waits while the peer does not read."""
        while data:
            data = data[self._tls.write(data) :]
        await self._flush()

    async def end(self) -> None:
        """Send the end of this direction; the other one goes on."""
        # Sending it, ssl also reads, for the peer's end, and would drop any data that it finds.
        self._early += self._decrypted()
        with contextlib.suppress(ssl.SSLWantReadError):  # the peer has not ended
            self._tls.unwrap()
        await self._flush()

    async def closed(self) -> None:
        """Return when the peer, which has sent its end, closes the connection; raises BrokenStream if it sends more."""
        if self._incoming.pending or await asyncio.get_running_loop().sock_recv(self.connection, 1):
            raise BrokenStream("the peer sent bytes after the end")

    def _decrypted(self) -> memoryview:
        """Return all that has been received in whole records; empty before there is one, and at the peer's end."""
        available = self._tls.pending() + self._incoming.pending
        # A record may have been received in part before.
        buffer = memoryview(bytearray(available + _RECORD_BYTES if available else 0))
        done = 0
        while done < len(buffer) and not self.ended:
            try:
                count: Any = self._tls.read(len(buffer) - done, buffer[done:])
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                count = 0
            self.ended = not count
            done += count
        if self._outgoing.pending > _UNSENT_LIMIT_BYTES:
            raise BrokenStream("the peer asks for more than it reads")
        return buffer[:done]

    async def _receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.connection, _PIECE_BYTES)
        if not data:
            raise BrokenStream("the connection was cut")
        self._incoming.write(data)

    async def _flush(self) -> None:
        async with self._sending:
            while data := self._outgoing.read():
                await asyncio.get_running_loop().sock_sendall(self.connection, data)
