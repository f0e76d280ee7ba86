"""The HTTP server: its socket, its TLS, and a graceful shutdown. It runs in the gateway's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn

from gateway.config.identity_settings import TlsSettings
from gateway.http.app import App
from gateway.http.connections import Connection, CountingSocket
from gateway.identity.tls import server_context
from gateway.serving.listening import host_and_port, unusable

_BACKLOG = 256
_KEEP_ALIVE_S = 75


class HttpListener:
    """Serves an application at `address` until `stop`."""

    def __init__(
        self, app: App, bound: socket.socket, *, tls: TlsSettings | None = None, resolve: Callable[[Path], Path]
    ) -> None:
        """Take a socket from `bind`; Misconfigured if the TLS files are unusable. `resolve` makes paths absolute."""
        context = None if tls is None else server_context(tls, resolve)
        self._bound = CountingSocket(bound)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                backlog=_BACKLOG,
                reset_contextvars=True,
                ssl_context_factory=None if context is None else lambda _config, _default: context,
            )
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the block ends; `stop` ends it in order before that."""
        # Before the server itself does: who learns now that it is ready may connect at once.
        self._bound.listen(_BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._bound]), name="http listener")
        try:
            yield
        finally:
            await self.stop(0)

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and end requests in progress after `grace_s`."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await asyncio.wait([self._task])
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the gateway."""
        yield


def bind(listen: str, *, shared: bool) -> socket.socket:
    """Return a socket that is bound to HOST:PORT; Misconfigured if that fails. Workers share a port."""
    host, port = host_and_port(listen, "--http")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        raise unusable(listen, "--http") from error
    return bound


def address_of(bound: socket.socket, listen: str) -> str:
    """Return the HOST:PORT of a bound socket."""
    return f"{host_and_port(listen)[0]}:{bound.getsockname()[1]}"
