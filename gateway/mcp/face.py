"""MCP over HTTP: /mcp for the thread `default`, /mcp/threads/THREAD for another.

Each request is authenticated before its body is read. Requests of revisions up to 2025-11-25 may belong to a session,
which has no state here (gateway/mcp/sessions.py); those of later revisions never do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent.tools.intake import ARGUMENTS_LIMIT_VALUES, values_in
from gateway.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    ScopeMissing,
    TooLarge,
    Unauthenticated,
)
from gateway.http.app import App, Receive, Scope, Send
from gateway.http.calls import Calls, body_of, unquoted
from gateway.identity.principal import Principal
from gateway.mcp.approval_page import PATH as APPROVALS
from gateway.mcp.approval_page import approval_route
from gateway.mcp.authorization import INVALID_REQUEST, PATH, Authorization, refused, rpc_error
from gateway.mcp.peer import PEER, Peer
from gateway.mcp.sessions import RunningCalls, Session
from gateway.serving.edge import ADMISSION
from gateway.serving.fair_loop import schedule_for
from gateway.serving.incoming import Reads
from gateway.serving.limits import Budget

if TYPE_CHECKING:
    from gateway.mcp.transport import Transport

_DEFAULT_THREAD = "default"
_THREADS = f"{PATH}/threads/"
# Bodies have at most 4 MiB, and are in memory before the call that they ask for is admitted.
_READS_OF_A_TENANT, _READS = 16, 128
# They stay there until the answer: admission counts only what is passed on of them.
_BODIES_OF_A_TENANT_BYTES, _BODIES_BYTES = 64 * 1024 * 1024, 512 * 1024 * 1024
# Those of a call's arguments, and what is around them.
_VALUES_LIMIT = ARGUMENTS_LIMIT_VALUES + 1_000
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
# The revisions that have sessions; a request without the header is of one of them.
_WITH_SESSIONS = (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


class McpFace:
    """Serves MCP while `running`."""

    def __init__(self, calls: Calls, authorization: Authorization) -> None:
        self._calls = calls
        self._authorization = authorization
        self._running = RunningCalls()
        self._reads = Reads(_READS_OF_A_TENANT, _READS)
        self._bodies = Budget(_BODIES_OF_A_TENANT_BYTES, _BODIES_BYTES)
        self._transport: asyncio.Future[Transport] | None = None
        self._host: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def routes(self) -> Sequence[BaseRoute]:
        endpoint = _Endpoint(self._handle)
        paths = (PATH, f"{_THREADS}{{thread:path}}")
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
        session = None
        if _is_old(request) and _SESSION in request.headers:
            session = Session.known(request.headers[_SESSION], principal)
            if session is None:
                return rpc_error(
                    404, INVALID_REQUEST, "there is no session with this id: send initialize for a new one"
                )
        try:
            thread = _thread_of(request)
        except InvalidArgument as error:
            return refused(error)
        tenant = principal.tenant.name if principal.tenant is not None else ""
        try:
            body = await self._reads.read(tenant, partial(body_of, request))
        except (TooLarge, DeadlineExceeded, Overloaded) as error:
            # Before the rest of the body arrives; the connection cannot be used again.
            return refused(error, {"connection": "close"})
        except Cancelled:
            return None
        schedule_for(tenant)
        with contextlib.ExitStack() as held:
            try:
                held.callback(self._kept(tenant, len(body)))
                call = _Call(request, principal, thread, body, session)
                await self._calls.work_for(tenant, len(body))(call.parse)
                if call.method == "notifications/cancelled" and session is not None:
                    self._running.cancel(session, call.params.get("requestId"))
                    return Response(status_code=202)
                # Beside the place of the tool call: one that waits for its approval has none.
                held.callback(ADMISSION.stream(tenant))
            except (Overloaded, TooLarge) as error:
                return refused(error)
            await self._pass_on(call, send)
        return None

    def _kept(self, tenant: str, size_bytes: int) -> Callable[[], None]:
        """Count a body until the returned function is called; raises Overloaded."""
        if not self._bodies.fits(tenant, size_bytes):
            raise Overloaded("the requests of this tenant in progress are too large together", 1.0)
        self._bodies.add(tenant, size_bytes)
        return partial(self._bodies.add, tenant, -size_bytes)

    async def _pass_on(self, call: _Call, send: Send) -> None:
        scope, session = call.request.scope, call.session
        approvals = f"{self._authorization.url(call.request)}{APPROVALS}/"
        scope[PEER] = peer = Peer(self._calls.client(call.request), call.thread, approvals)
        if call.is_old:
            scope[PEER] = peer = replace(peer, opens_urls=session is not None and session.opens_urls)
        if session is not None:
            scope[PEER] = replace(peer, cancellable=partial(self._running.cancellable, session))
        if call.method == "initialize":
            send = _with_session(send, Session.opened(call.principal, opens_urls=_opens_urls(call.params)))
        streamed = not call.is_old or call.method == "tools/call"
        transport = await self._loaded()
        try:
            await transport.handle(scope, _replayed(call.body, call.request.receive), send, streamed=streamed)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None  # such as the timeout of a peer that does not read its answer

    async def _loaded(self) -> Transport:
        """Return the transport, which the first request imports: beside the event loop, as it takes a while."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport = loop.create_future()
            context = contextvars.Context()  # not that of the first caller
            self._host = loop.create_task(self._hosted(self._transport), name="mcp transport", context=context)
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


class _Call:
    """A request with its body. Of revisions with sessions `parse` finds the method and the parameters."""

    def __init__(
        self, request: Request, principal: Principal, thread: str, body: bytes, session: Session | None
    ) -> None:
        self.request = request
        self.principal = principal
        self.thread = thread
        self.body = body
        self.session = session
        self.is_old = _is_old(request)
        self.method = ""
        self.params: Mapping[str, Any] = {}

    def parse(self) -> None:
        """Find the method and the parameters, unless the transport will do that, or refuse the message.

        Raises TooLarge for a message that would take too long to decode, here and there.
        """
        # As json.loads decodes bytes: with it, the transport takes more encodings than UTF-8.
        text = self.body.decode(json.detect_encoding(self.body), errors="replace")
        if values_in(text) > _VALUES_LIMIT:
            raise TooLarge(f"the body has more than {_VALUES_LIMIT:,} JSON values: do it in several calls")
        if not self.is_old:
            return
        try:
            message = json.loads(self.body.decode())
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict) and isinstance(message.get("method"), str):
            params = message.get("params")
            self.method, self.params = message["method"], params if isinstance(params, dict) else {}


class _Endpoint:
    """An ASGI application, which starlette routes to as it is, unlike a method."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _thread_of(request: Request) -> str:
    """Return the thread that the path names; raises InvalidArgument."""
    if "thread" not in request.path_params:
        return _DEFAULT_THREAD
    thread = unquoted(request.scope["raw_path"].decode("ascii").removeprefix(_THREADS))
    if not thread:
        raise InvalidArgument(f"the path names no thread: {_THREADS}THREAD, or {PATH} for the thread {_DEFAULT_THREAD}")
    return thread


def _is_old(request: Request) -> bool:
    """Return whether a request is of a revision that has sessions."""
    return request.headers.get(_VERSION) in _WITH_SESSIONS


def _first_of(group: BaseExceptionGroup) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


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
