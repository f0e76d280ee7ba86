"""The edge: every RPC goes through one of these wrappers, which authenticate the caller and translate errors, once.

A servicer names in `scope` the credential scope that its RPCs need, and in `scopes` what single RPCs need instead. One
with `for_operators` admits operators too; their tenant is None, and they need `operator_scope` where there is one. A
stream, and a call that takes long, ends when its caller's credential does.

An RPC is written as `async def CallTool(self, tenant, request)`; what it raises becomes a status with a
google.rpc.ErrorInfo whose reason a client can branch on.

`FirstMessageTimeout` limits the time for an RPC's first message, and for its answer to be read. Nothing of a call is
read before its caller is known. For health and reflection, which need no credential, few requests are read at a time.
"""

import asyncio
import contextlib
import functools
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gateway.credentials.caller import CALLER
from gateway.credentials.keys import OPERATE
from gateway.errors import (
    AirlockError,
    InProgress,
    Internal,
    InvalidArgument,
    Overloaded,
    QuotaExceeded,
    ScopeMissing,
    from_sandbox,
)
from gateway.identity.call_guard import CallGuard
from gateway.identity.principal import PRINCIPAL, CallCredentials, Context, Principal
from gateway.serving.admission import Admission
from gateway.serving.fair_loop import schedule_for
from gateway.serving.incoming import TIMEOUT_S, Incoming, Reads, SendTimeouts, call_task, read_request
from gateway.serving.limits import AnonymousConnections, Ends
from gateway.serving.request_checks import check
from gateway.storage.audit_store import OPERATORS
from gateway.support.hosts import host_of
from gateway.telemetry.rpc import OURS, WrappingInterceptor, admitted, refused
from gateway.tenancy.tenants import Tenant
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)
ADMISSION = Admission()
"""Of this process, whose memory and processors it protects; gateway/server.py configures it."""
GUARD = CallGuard()
"""Of this process."""
# A request has at most 4 MiB: 64 MiB of a tenant and of all unknown callers, 512 MiB in all.
_READS_OF_A_TENANT, _READS = 16, 128
UNIDENTIFIED = 768
"""Calls whose credential is being checked."""
ANONYMOUS = 256
"""Calls of health in progress."""
# To send the answer to a caller without a credential.
_ANONYMOUS_SEND_S = 5.0
_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS = 4, 16


class Authenticator(Protocol):
    """Returns the caller of a call; raises Unauthenticated. One without credentials returns the tenant alone."""

    async def __call__(self, context: Any) -> Principal | Tenant: ...


class Service(Protocol):
    """What the wrappers need of a servicer.

    Optional: `scopes`, the scopes of single RPCs by name; `for_operators` and `operator_scope`; and names of RPCs:
    `works`, streams that work, such as a program, and so need a place like unary calls; `waits`, unary calls that only
    wait; and `frees`, calls that end work, which must not wait themselves.
    """

    scope: str
    authenticate: Authenticator


# Every RPC has a task of its own, and so a variable of its own.
_DEADLINE_S: ContextVar[float | None] = ContextVar("deadline_s")
S = TypeVar("S", bound=Service)
T = TypeVar("T", Tenant, Tenant | None)
Q = TypeVar("Q")
A = TypeVar("A")


def deadline_s() -> float | None:
    """Return the deadline of the current call on the event loop's clock; None if it has none."""
    return _DEADLINE_S.get(None)


def scope_of(service: Service | type[Service], method: str) -> str:
    """Return the scope that an RPC needs."""
    scopes: Mapping[str, str] = getattr(service, "scopes", {})
    return scopes.get(method, service.scope)


def require_scope(scope: str) -> None:
    """Raise ScopeMissing if the current call lacks a scope that it needs in addition to its RPC's own."""
    who = PRINCIPAL.get(None)
    if who is not None and scope not in who.scopes:
        raise _scope_missing(who, scope)


async def _admitted(service: Service, method: str, context: Context) -> Tenant | None:
    """Return the tenant of an admissible call; raises Unauthenticated, ScopeMissing."""
    found = await service.authenticate(context)
    who = Principal(found) if isinstance(found, Tenant) else found
    scope = scope_of(service, method)
    if who.tenant is None:
        scope = getattr(service, "operator_scope", scope)
    if scope not in who.scopes:
        raise _scope_missing(who, scope)
    if who.tenant is None and not getattr(service, "for_operators", False):
        raise ScopeMissing(
            "an operator's key belongs to no tenant: create a tenant's key with `airlock key create --tenant NAME`"
        )
    CALLER.set(who.caller)
    PRINCIPAL.set(who)
    schedule_for(_name(who.tenant))
    admitted(_name(who.tenant))
    return who.tenant


def _scope_missing(who: Principal, scope: str) -> ScopeMissing:
    tenant = "NAME" if who.tenant is None else who.tenant.name
    whose = "--operator" if scope == OPERATE else f"--tenant {tenant} --scope {scope}"
    return ScopeMissing(
        f"this credential has the scopes {', '.join(who.scopes) or 'none'}, and this call needs {scope}: create a "
        f"key with `airlock key create {whose}`",
        scope=scope,
    )


async def _begin(service: Service, method: str, ends: Ends, request: Any, context: Context) -> tuple[Any, Any]:
    """Return the tenant and the request of an admissible call, which counts as open until `ends` closes."""
    left_s: float | None = context.time_remaining()  # grpc-stubs say float
    _DEADLINE_S.set(None if left_s is None else asyncio.get_running_loop().time() + left_s)
    tenant = await _admitted(service, method, context)
    if isinstance(request, Incoming):
        request.identify(_name(tenant), ADMISSION)
    ends.add(ADMISSION.open_rpc(_name(tenant)))
    if isinstance(request, Incoming):
        if request.streams:
            return tenant, request
        request = await request.request()
    check(request)
    return tenant, request


async def _take_place(service: Service, method: str, ends: Ends, request: Any, context: Context) -> None:
    """Take the place that a unary call needs until `ends` closes."""
    name = _name(PRINCIPAL.get().tenant)
    if method in getattr(service, "frees", ()):
        ends.add(ADMISSION.cancellation(name))
    elif method in getattr(service, "waits", ()):
        ends.add(ADMISSION.stream(name))
    elif hasattr(request, "__anext__"):
        ends.add(ADMISSION.stream(name))
        ends.add(await ADMISSION.upload(name))
    else:
        ends.add(await _at_work(name, request, context))


async def _at_work(name: str, request: object, context: Context) -> Callable[[], None]:
    size_bytes = request.ByteSize() if isinstance(request, Message) else 0
    return await ADMISSION.begin(name, size_bytes=size_bytes, remaining_s=context.time_remaining())


def _name(tenant: Tenant | None) -> str:
    return OPERATORS if tenant is None else tenant.name


def unary(method: Callable[[S, T, Q], Awaitable[A]]) -> Callable[[S, Q, Context], Awaitable[A]]:
    """Wrap a unary RPC. It keeps its place until the peer has read the answer."""
    name = method.__name__

    @functools.wraps(method)
    async def rpc(self: S, request: Any, context: Context) -> A:
        incoming = request
        try:
            with Ends() as ends:
                tenant, request = await _begin(self, name, ends, request, context)
                with GUARD.call(self.authenticate, CallCredentials.by(context)):
                    await _take_place(self, name, ends, request, context)
                    answer = await method(self, tenant, request)
                if isinstance(incoming, Incoming):
                    incoming.after.take(ends)
                return answer
        except Exception as error:
            del request  # grpc keeps the frame for a while, which must not keep a refused request in memory
            await _abort(context, error)

    return rpc


def streaming(method: Callable[[S, T, Q], AsyncIterator[A]]) -> Callable[[S, Q, Context], AsyncIterator[A]]:
    """Wrap an RPC that returns a stream."""
    name = method.__name__

    @functools.wraps(method)
    async def rpc(self: S, request: Any, context: Context) -> AsyncIterator[A]:
        try:
            with Ends() as ends:
                tenant, request = await _begin(self, name, ends, request, context)
                ends.add(ADMISSION.stream(_name(tenant)))
                with GUARD.call(self.authenticate, CallCredentials.by(context)) as guard:
                    if name in getattr(self, "works", ()):
                        ends.add(await _at_work(_name(tenant), request, context))
                    async for answer in method(self, tenant, request):
                        guard.send()
                        yield answer
                        guard.sent()
        except Exception as error:
            del request
            await _abort(context, error)

    return rpc


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, SandboxError):
        error = from_sandbox(error)
    if not isinstance(error, AirlockError):
        log.error("fault", exc_info=error)
        error = Internal("internal error in the gateway; its log has the details")
    refused(error)
    await abort_with(context, error)


async def abort_with(context: Context, error: AirlockError) -> NoReturn:
    """End a call with an error."""
    # grpc-stubs do not know this method, nor that it never returns.
    abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
    await abort(rpc_status.to_status(status_of(error)))


def status_of(error: AirlockError) -> status_pb2.Status:
    """Return the google.rpc.Status of an error."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain="airlock", metadata=error.details)
    messages: list[Message] = [info]
    if isinstance(error, InvalidArgument) and error.violations:
        violations = [{"field": field, "description": text} for field, text in error.violations.items()]
        messages.append(error_details_pb2.BadRequest(field_violations=violations))
    if isinstance(error, QuotaExceeded):
        subject = error.details.get("rule") or error.details.get("quota", "")
        messages.append(error_details_pb2.QuotaFailure(violations=[{"subject": subject, "description": str(error)}]))
    if isinstance(error, Overloaded | InProgress) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(error.retry_after_s * 1_000_000))
        messages.append(retry)
    status = status_pb2.Status(code=error.code.value[0], message=str(error))
    for message in messages:
        status.details.add().Pack(message)
    return status


class FirstMessageTimeout(WrappingInterceptor):
    """Wraps the handler of each method; each call has a task of its own."""

    def __init__(self, timeout_s: float = TIMEOUT_S, sending: SendTimeouts | None = None) -> None:
        super().__init__(lambda name, handler: (self._ours if name.startswith(OURS) else self._others)(handler))
        self._reads = Reads(_READS_OF_A_TENANT, _READS, timeout_s)
        self._anonymous_reads = Reads(_ANONYMOUS_READS_OF_A_HOST, _ANONYMOUS_READS, timeout_s)
        self._unidentified = AnonymousConnections(of_connection=256, of_host=384, in_all=UNIDENTIFIED)
        self._anonymous = AnonymousConnections(of_connection=16, of_host=64, in_all=ANONYMOUS)
        self._sending = sending or SendTimeouts()
        self._anonymous_sending = SendTimeouts(min(_ANONYMOUS_SEND_S, self._sending.send_s))

    def _ours(self, handler: Any) -> Any:
        """Return the handler of a method whose edge asks for the caller and then for the request."""
        inner, encode = _function_of(handler), handler.response_serializer

        async def begin(context: Context) -> Incoming:
            end = self._unidentified.one(context.peer()).close
            decode, streams = handler.request_deserializer, handler.request_streaming
            incoming = Incoming(context, decode, self._reads, end, streams=streams)
            call_task().add_done_callback(incoming.close)
            return incoming

        async def answer(_requests: object, context: Context) -> Any:
            incoming = await _or_refused(context, begin)
            raw: bytes = encode(await inner(incoming, context))
            incoming.count_answer(len(raw))
            incoming.after.add(self._sending.begin(len(raw)))
            return raw

        async def answers(_requests: object, context: Context) -> AsyncIterator[Any]:
            incoming = await _or_refused(context, begin)
            async with contextlib.aclosing(inner(incoming, context)) as messages:
                async for message in messages:
                    raw: bytes = encode(message)
                    incoming.count_answer(len(raw))
                    yield raw

        return _raw_handler(answers if handler.response_streaming else answer, streams=handler.response_streaming)

    def _others(self, handler: Any) -> Any:
        """Return the handler of a method without credentials; its servicer limits a stream of requests."""
        if handler.request_streaming:
            return handler
        inner, encode = _function_of(handler), handler.response_serializer

        async def arrived(context: Context) -> Any:
            host = host_of(context.peer())
            return await read_request(self._anonymous_reads, host, context, handler.request_deserializer)

        async def begin(context: Context) -> Ends:
            ends = self._anonymous.one(context.peer())
            call_task().add_done_callback(lambda _: ends.close())
            return ends

        async def answer(_requests: object, context: Context) -> Any:
            ends = await _or_refused(context, begin)
            raw: bytes = encode(await inner(await _or_refused(context, arrived), context))
            ends.add(self._anonymous_sending.begin(len(raw)))
            return raw

        async def writes(_requests: object, context: Context) -> None:
            await inner(await _or_refused(context, arrived), context)

        if not handler.response_streaming:
            return _raw_handler(answer, streams=False)
        if inspect.isasyncgenfunction(inner):
            raise TypeError("a method without credentials must write its answers, so that each has a time limit")
        return grpc.stream_stream_rpc_method_handler(writes, response_serializer=encode)


def _function_of(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _raw_handler(function: Any, *, streams: bool) -> Any:
    """Return a handler that reads its requests itself and returns bytes."""
    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(function)


async def _or_refused(context: Context, what: Callable[[Context], Awaitable[Q]]) -> Q:
    """Return the result of a function; abort the call with the error that it raises."""
    try:
        return await what(context)
    except AirlockError as error:
        await abort_with(context, error)
