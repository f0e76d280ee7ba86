"""MCP over HTTP: /mcp for the thread `default`, /mcp/threads/THREAD for another.

Each request is authenticated before its body is read. Requests of revisions up to 2025-11-25 may belong to a session,
which has no state here (gateway/mcp/sessions.py); those of later revisions never do.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.errors import Cancelled, DeadlineExceeded, ScopeMissing, TooLarge, Unauthenticated
from gateway.http.app import App, Receive, Scope, Send
from gateway.http.calls import Calls, body_of
from gateway.identity.principal import Principal
from gateway.mcp.approval_page import PATH as APPROVALS
from gateway.mcp.approval_page import approval_route
from gateway.mcp.authorization import INVALID_REQUEST, PATH, Authorization, refused, rpc_error
from gateway.mcp.peer import PEER, Peer
from gateway.mcp.sessions import RunningCalls, Session

if TYPE_CHECKING:
    from gateway.mcp.transport import Transport

_DEFAULT_THREAD = "default"
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
# The revisions that have sessions; a request without the header is of one of them.
_WITH_SESSIONS = (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


class McpFace:
    """Serves MCP while `running`."""

    def __init__(self, calls: Calls, authorization: Authorization) -> None:
        self._calls = calls
        self._authorization = authorization
        self._running = RunningCalls()
        self._transport: asyncio.Future[Transport] | None = None
        self._host: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def routes(self) -> Sequence[BaseRoute]:
        endpoint = _Endpoint(self._handle)
        paths = (PATH, f"{PATH}/threads/{{thread:path}}")
        return [*(Route(path, endpoint) for path in paths), *self._authorization.routes(), approval_route()]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve until the block ends; what is in progress then is cancelled."""
        try:
            yield
        finally:
            self._stopping.set()
            if self._host is not None:
                await asyncio.wait([self._host])

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            principal = await self._authorization.principal(request)
        except (Unauthenticated, ScopeMissing) as error:
            await self._authorization.refusal(request, error)(scope, receive, send)
            return
        answer = await self._answer(request, principal, send)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: Request, principal: Principal, send: Send) -> Response | None:
        """Serve a request; return the response if it does not get as far as the transport."""
        if request.method != "POST":
            # There is nothing to send without a request, and no session to end.
            return rpc_error(405, INVALID_REQUEST, "only POST is served here", headers={"allow": "POST"})
        old = request.headers.get(_VERSION) in _WITH_SESSIONS
        session = None
        if old and _SESSION in request.headers:
            session = Session.known(request.headers[_SESSION], principal)
            if session is None:
                return rpc_error(
                    404, INVALID_REQUEST, "there is no session with this id: send initialize for a new one"
                )
        try:
            body = await body_of(request)
        except (TooLarge, DeadlineExceeded) as error:
            # Before the rest of the body arrives; the connection cannot be used again.
            return refused(error, {"connection": "close"})
        except Cancelled:
            return None
        if not old:
            await self._pass_on(request, send, body, self._peer(request))
            return None
        method, params = _message(body)
        if session is not None and method == "notifications/cancelled":
            self._running.cancel(session, params.get("requestId"))
            return Response(status_code=202)
        if method == "initialize":
            send = _with_session(send, Session.opened(principal, opens_urls=_opens_urls(params)))
        peer = replace(self._peer(request), opens_urls=session is not None and session.opens_urls)
        if session is not None:
            peer = replace(peer, cancellable=partial(self._running.cancellable, session))
        await self._pass_on(request, send, body, peer, streamed=method == "tools/call")
        return None

    def _peer(self, request: Request) -> Peer:
        thread = request.path_params.get("thread", _DEFAULT_THREAD)
        return Peer(self._calls.client(request), thread, f"{self._authorization.url(request)}{APPROVALS}/")

    async def _pass_on(self, request: Request, send: Send, body: bytes, peer: Peer, *, streamed: bool = True) -> None:
        request.scope[PEER] = peer
        transport = await self._loaded()
        await transport.handle(request.scope, _replayed(body, request.receive), send, streamed=streamed)

    async def _loaded(self) -> Transport:
        """Return the transport, which the first request imports: beside the event loop, as it takes a while."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport = loop.create_future()
            self._host = loop.create_task(self._hosted(self._transport), name="mcp transport")
        return await asyncio.shield(self._transport)

    async def _hosted(self, ready: asyncio.Future[Transport]) -> None:
        try:
            module = await asyncio.to_thread(importlib.import_module, "gateway.mcp.transport")
            transport: Transport = module.Transport()
            async with transport.running():
                ready.set_result(transport)
                await self._stopping.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


class _Endpoint:
    """An ASGI application, which starlette routes to as it is, unlike a method."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _message(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the method and the parameters of a message; none of what the transport will refuse."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return "", {}
    method = message.get("method") if isinstance(message, dict) else ""
    params = message.get("params") if isinstance(message, dict) else {}
    return method if isinstance(method, str) else "", params if isinstance(params, dict) else {}


def _opens_urls(opening: Mapping[str, Any]) -> bool:
    capabilities = opening.get("capabilities")
    elicitation = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(elicitation, dict) and isinstance(elicitation.get("url"), dict)


def _with_session(send: Send, session: Session) -> Send:
    """Return a `send` that adds the session's id to a successful response."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            message = {**message, "headers": list(message["headers"])}
            MutableHeaders(scope=message)[_SESSION] = session.id
        await send(message)

    return sending


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that has been read, and then what follows it."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return left.pop() if left else await receive()

    return replay
