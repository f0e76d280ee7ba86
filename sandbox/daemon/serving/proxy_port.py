"""The port on loopback where tool code reaches the network, and the ports of tool code that the gateway reaches.

Nothing is parsed here. Each connection becomes a tunnel to the gateway, which speaks the proxy protocols.
"""

import asyncio
import socket
from contextlib import closing

from sandbox.daemon.failures import Fault, check_range
from sandbox.daemon.frames import FrameSocket
from sandbox.daemon.relay import SEND_BUFFER_BYTES, relay
from sandbox.daemon.serving.calls import Hangups
from sandbox.v1 import channel_pb2 as wire

PROXY_PORT = 3128
"""The usual one of HTTP proxies. If tool code listens there, the kernel chooses another."""

# Connections that wait in the kernel until the gateway takes them.
_BACKLOG = 128
# A program that reads nothing for so long loses its connection.
_READER_TIMEOUT_MS = 15 * 60 * 1000
# Both attempts together take less than the gateway waits for the answer.
_CONNECT_S = 4.0
_ACCEPT_AGAIN_S = 0.05
_LOOPBACK = "127.0.0.1"


class ProxyPort:
    """Hands connections to those who wait for one. Listens while it is open."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._waiting: list[asyncio.Future[socket.socket]] = []
        # Accepted for someone who no longer waits.
        self._left: list[socket.socket] = []
        self._watched = False

    @property
    def port(self) -> int:
        """The port, 0 when it is closed."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    def open(self) -> None:
        """Listen; without effect if it listens already. Raises OSError."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((_LOOPBACK, PROXY_PORT))
            except OSError:
                listener.bind((_LOOPBACK, 0))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener

    def close(self) -> None:
        """Stop listening; who waits gets NOT_FOUND."""
        self._unwatch()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(_closed())
        self._waiting.clear()
        while self._left:
            self._left.pop().close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> socket.socket:
        """Return the next connection; raises a Fault when the port is not open, or is closed meanwhile."""
        if self._listener is None:
            raise _closed()
        if self._left:
            return self._left.pop()
        waiting: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._watch()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._left.append(waiting.result())
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _watch(self) -> None:
        """Accept while someone waits; otherwise connections wait in the kernel's queue."""
        if self._listener is not None and not self._watched:
            asyncio.get_running_loop().add_reader(self._listener, self._accept_one, self._listener)
            self._watched = True

    def _unwatch(self) -> None:
        if self._listener is not None and self._watched:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._watched = False

    def _accept_one(self, listener: socket.socket) -> None:
        waiting = [one for one in self._waiting if not one.done()]
        if not waiting:
            self._unwatch()
            return
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the client was gone before
            return
        except OSError:  # no descriptors left
            self._unwatch()
            asyncio.get_running_loop().call_later(_ACCEPT_AGAIN_S, self._watch)
            return
        connection.setblocking(False)
        self._waiting.remove(waiting[-1])
        waiting[-1].set_result(connection)


def _closed() -> Fault:
    return Fault(wire.FAILURE_KIND_NOT_FOUND, "the proxy port is not open")


async def connected(request: wire.PortConnectRequest, proxy: ProxyPort) -> socket.socket:
    """Return a connection to a port that tool code listens on. Raises a Fault."""
    check_range("port", request.port, 65_535)
    if request.port == proxy.port:
        raise Fault(wire.FAILURE_KIND_INVALID_ARGUMENT, f"port {request.port} is the sandbox's own proxy")
    for family, host in ((socket.AF_INET, _LOOPBACK), (socket.AF_INET6, "::1")):
        try:
            client = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # no IPv6 here
            continue
        try:
            async with asyncio.timeout(_CONNECT_S):  # the program may accept nothing
                await asyncio.get_running_loop().sock_connect(client, (host, request.port))
        except OSError:  # TimeoutError is one
            client.close()
        except BaseException:
            client.close()
            raise
        else:
            return client
    message = f"nothing listens on port {request.port} of the sandbox's loopback; start the server first"
    raise Fault(wire.FAILURE_KIND_NOT_FOUND, message)


async def serve_tunnel(frames: FrameSocket, local: socket.socket, hangups: Hangups) -> None:
    """Make a tunnel of a channel's connection, to a connection inside the sandbox, and return at its end."""

    def to_gateway(piece: memoryview) -> None:
        # From here on the gateway's own end looks like a hang-up, although bytes of it may still be unread.
        if not piece:
            hangups.forget(frames.connection)

    with closing(local):
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _READER_TIMEOUT_MS)
        frames.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        hangups.watch_whole(frames.connection)
        await frames.send(wire.Reply(tunnel=wire.Tunnel()))
        if frames.buffered_bytes:
            raise ConnectionAbortedError("the gateway sent bytes before the tunnel was there")
        try:
            await relay(frames.connection, local, back=to_gateway)
        except OSError as error:
            # No failure may be sent any more: it would be bytes of the tunnel.
            raise ConnectionAbortedError(str(error)) from error
