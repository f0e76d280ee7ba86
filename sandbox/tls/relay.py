"""Relays between a plain socket and a TLS connection, so that the plain socket is like one to the other end itself.

Both ends of the channel use it: a relay beside the daemon, with the daemon's Unix socket, and the gateway, whose
channel has one end of a pair of sockets. All that a Unix socket tells goes through: bytes, the end of one direction,
that the reader is slow, and that the other side hung up, also while it is not read.
"""

import asyncio
import contextlib
import select
import socket
import struct

from sandbox.tls.stream import TlsStream

PIECE_BYTES = 256 * 1024
_SEND_BUFFER_BYTES = 1024 * 1024  # as for a tunnel (sandbox/daemon/relay.py)
# For how long the peer may take to hang up after everything was sent.
_LINGER_S = 5.0
# A peer that vanished is noticed within half a minute.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def prepare(connection: socket.socket) -> None:
    """Set the options of a TCP connection of the channel, at either end."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def relay(plain: socket.socket, stream: TlsStream, *, hangup_cancels: bool) -> None:
    """Relay until either side hangs up, and close both sockets; raises nothing that a peer can cause.

    With `hangup_cancels` what the plain side sent and was not read yet is dropped when it hangs up, unless the peer has
    ended: a caller that goes away must be noticed though the daemon is not reading. Else all of it arrives.
    """
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    tcp = stream.connection
    with plain, tcp, contextlib.closing(_Hangups(plain, tcp)) as hangups:
        outward = asyncio.ensure_future(_outward(plain, stream))
        inward = asyncio.ensure_future(_inward(stream, plain))
        tasks = {outward, inward}
        try:
            await _first_end(outward, inward, hangups)
            if not hangups.tcp.done() and hangups.plain.done():
                if hangup_cancels and not stream.ended:
                    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                else:
                    await asyncio.wait({outward, hangups.tcp}, return_when=asyncio.FIRST_COMPLETED)
                    await _hung_up(tcp, inward)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _first_end(outward: asyncio.Future[None], inward: asyncio.Future[None], hangups: "_Hangups") -> None:
    """Wait until either side hung up, or the TLS connection is broken."""
    waited = {outward, inward, hangups.plain, hangups.tcp}
    while True:
        done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        # One direction may end well before the other.
        if done != {outward} or outward.exception() is not None:
            return


async def _hung_up(tcp: socket.socket, inward: asyncio.Future[None]) -> None:
    """Say that nothing follows, and take what the peer still sends: unread bytes would reset what is on its way."""
    inward.cancel()
    await asyncio.gather(inward, return_exceptions=True)
    with contextlib.suppress(OSError, TimeoutError):
        tcp.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LINGER_S):
            while await asyncio.get_running_loop().sock_recv(tcp, PIECE_BYTES):
                pass


async def _outward(plain: socket.socket, stream: TlsStream) -> None:
    while data := await _received(plain):
        await stream.write(memoryview(data))
        await asyncio.sleep(0)  # none of these waits while both sides are ready
    if data is not None:
        await stream.end()


async def _received(plain: socket.socket) -> bytes | None:
    """Return what comes next, empty at the end; None when the plain side hung up with bytes unread."""
    try:
        return await asyncio.get_running_loop().sock_recv(plain, PIECE_BYTES)
    except ConnectionError:
        return None


async def _inward(stream: TlsStream, plain: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await stream.read():
        try:
            await loop.sock_sendall(plain, data)
        except OSError:
            await loop.create_future()  # the plain side hung up, which _Hangups reports
        await asyncio.sleep(0)
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_WR)
    await stream.closed()


class _Hangups:
    """Futures that are done when a socket is closed in both directions, or broken, whether or not it is read."""

    def __init__(self, plain: socket.socket, tcp: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.plain: asyncio.Future[None] = self._loop.create_future()
        self.tcp: asyncio.Future[None] = self._loop.create_future()
        self._waiting = {plain.fileno(): self.plain, tcp.fileno(): self.tcp}
        # Closing both directions, and errors, are reported unasked. A poll set becomes readable itself on an event.
        self._epoll = select.epoll()
        for descriptor in self._waiting:
            self._epoll.register(descriptor, 0)
        self._loop.add_reader(self._epoll.fileno(), self._note)

    def _note(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            self._epoll.unregister(descriptor)
            self._waiting.pop(descriptor).set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
