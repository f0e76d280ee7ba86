"""The HTTP application: routes, what holds for each request, and errors as problem documents.

Of each request the Host and Origin headers are checked before anything of it is read, so that a web page cannot make a
browser send requests to a gateway on loopback. An answer that its peer does not read ends the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import grpc.aio
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from airlock.wire import error_of
from gateway.config.http_settings import HttpSettings
from gateway.errors import AirlockError, Internal, Unavailable
from gateway.http.problems import problem, refusal
from gateway.serving.incoming import send_limit_s

log = structlog.get_logger(__name__)
_PIECE_BYTES = 256 * 1024
_LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
_STOPPED = "the gateway shut down before the call ended: what it did may or may not be there"
Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(routes: Sequence[BaseRoute], settings: HttpSettings, *, loopback: bool) -> App:
    """Return the application; `loopback`: the listener is reachable from this machine alone."""
    handlers: dict[Any, Any] = {
        AirlockError: _refused,
        grpc.aio.AioRpcError: _refused_by_service,
        HTTPException: _not_served,
        Exception: _faulty,
    }
    app = Starlette(routes=list(routes), exception_handlers=handlers)
    app.router.redirect_slashes = False
    names = settings.hosts or (_LOOPBACK if loopback else ())
    return _Checked(_InTime(app), names, settings.origins)


async def _refused(_request: Request, error: AirlockError) -> Response:
    return problem(error)


async def _refused_by_service(_request: Request, error: grpc.aio.AioRpcError) -> Response:
    return problem(error_of(error))


async def _not_served(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.scope['path']}"
    if error.status_code == 404:
        return refusal(404, "Not found", f"{what}: no such path; GET /openapi.json lists them")
    return refusal(error.status_code, error.detail, f"{what}: {error.detail}")


async def _faulty(_request: Request, _error: Exception) -> Response:
    return problem(Internal("internal error in the gateway; its log has the details"))


class _InTime:
    """Ends the connection of an answer that its peer does not read, or that cannot be completed."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = complete = False

        async def in_time(message: Any) -> None:
            nonlocal begun, complete
            begun = True
            await _send_in_time(send, message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, in_time)
        except asyncio.CancelledError:  # by the server, which stops
            if not begun:
                await problem(Unavailable(_STOPPED))(scope, receive, send)
            else:
                await _end(scope)
        except Exception as error:
            if complete:
                log.exception("fault in an HTTP request")
                return
            # Starlette raises an error of its own where an answer has begun.
            cause = error.__cause__ or error
            if isinstance(cause, TimeoutError):
                log.info("an HTTP answer was not read in time", path=scope["path"])
            elif isinstance(cause, AirlockError | grpc.aio.AioRpcError):
                log.info("an HTTP answer was cut off", path=scope["path"], error=str(cause))
            else:
                log.exception("fault in an HTTP answer")
            await _end(scope)


async def _end(scope: Scope) -> None:
    """End the connection of a request, so that its peer knows that the answer is not complete."""
    scope["state"]["abort"]()
    await scope["state"]["gone"].wait()


async def _send_in_time(send: Send, message: Any) -> None:
    """Send a message in pieces, each within its time. Only one piece is ever in the connection's buffer."""
    body = message.get("body", b"")
    pieces = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)] or [b""]
    for number, piece in enumerate(pieces, start=1):
        part = {**message, "body": piece, "more_body": number < len(pieces) or message.get("more_body", False)}
        async with asyncio.timeout(send_limit_s(len(piece))):
            await send(part if message["type"] == "http.response.body" else message)


class _Checked:
    """Refuses requests with another Host or Origin than the configured ones."""

    def __init__(self, app: App, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._domains = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._origins = frozenset(origin.lower() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope)
        await (self._app(scope, receive, send) if refused is None else refused(scope, receive, send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Request(scope).headers
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self._hosts and not self._hosts & {host, name} and not name.endswith(self._domains):
            why = f"Host {host!r} is not served here: if it should be, add it to http.hosts"
            return refusal(421, "Misdirected request", why)
        origin = headers.get("origin", "").lower()
        if origin and origin not in self._origins and origin != f"{scope['scheme']}://{host}":
            why = f"requests from Origin {origin!r} are refused: to allow them, add it to http.origins"
            return refusal(403, "Origin refused", why)
        return None
