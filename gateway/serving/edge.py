"""The edge: every RPC goes through one of these wrappers, which authenticate the caller and translate errors, once.

A servicer names in `scope` the credential scope that its RPCs need, and in `scopes` what single RPCs need instead. One
with `for_operators` admits operators too; their tenant is None. A stream, and a call that takes long, ends when its
caller's credential does.

An RPC is written as `async def CallTool(self, tenant, request)`; what it raises becomes a status with a
google.rpc.ErrorInfo whose reason a client can branch on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
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
from gateway.identity.call_credentials import CallCredentials, Context
from gateway.identity.call_guard import CallGuard
from gateway.identity.principal import PRINCIPAL, Principal
from gateway.serving.admission import Admission
from gateway.serving.fair_loop import schedule_for
from gateway.serving.incoming import Incoming, not_decoded
from gateway.serving.request_checks import check
from gateway.storage.audit_store import OPERATORS
from gateway.telemetry.rpc import admitted, refused
from gateway.tenancy.tenants import Tenant
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)
_DOMAIN = "airlock"
ADMISSION = Admission()
"""Of this process, as memory and processors are; gateway/server.py gives it the configured bounds."""
GUARD = CallGuard()
"""Of this process."""


class Authenticator(Protocol):
    """Tells whose call it is; Unauthenticated when nobody's. One that knows no keys answers with the tenant alone."""

    async def __call__(self, context: Any) -> Principal | Tenant: ...


class Service(Protocol):
    """What a servicer must have for the wrappers.

    It may also have `scopes`, what single RPCs need by their names, `for_operators`, `works`: the names of its streams
    that work, such as a program, and so need a place as calls that answer once do, `waits`: of those that answer
    once and only wait for something until then, and `frees`: of those that end work, for which nobody may have to wait.
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
    """Raise ScopeMissing where the call under way was not made with a scope that it needs besides its RPC's own."""
    who = PRINCIPAL.get(None)
    if who is not None and scope not in who.scopes:
        raise _scope_missing(who, scope)


async def _admitted(service: Service, method: str, context: Context) -> Tenant | None:
    """Return the tenant of a call that may be made; Unauthenticated or ScopeMissing for others."""
    found = await service.authenticate(context)
    who = Principal(found) if isinstance(found, Tenant) else found
    scope = scope_of(service, method)
    if scope not in who.scopes:
        raise _scope_missing(who, scope)
    if who.tenant is None and not getattr(service, "for_operators", False):
        raise ScopeMissing(
            "an operator's key belongs to no tenant: create a tenant's key with `airlock key create --tenant NAME`"
        )
    CALLER.set(who.caller)
    PRINCIPAL.set(who)
    schedule_for(OPERATORS if who.tenant is None else who.tenant.name)
    admitted(OPERATORS if who.tenant is None else who.tenant.name)
    return who.tenant


def _scope_missing(who: Principal, scope: str) -> ScopeMissing:
    if scope == OPERATE:
        whose = "--operator"
    elif who.tenant is None:
        whose = f"--tenant NAME --scope {scope}"
    else:
        whose = f"--tenant {who.tenant.name} --scope {scope}"
    return ScopeMissing(
        f"the API key has the scopes {', '.join(who.scopes) or 'nothing'}, and this call needs {scope}: create a "
        f"key with `airlock key create {whose}`",
        scope=scope,
    )


async def _begin(
    service: Service, method: str, held: contextlib.ExitStack, request: Any, context: Context
) -> tuple[Any, Any]:
    """Return the tenant and the request of a call that may be made; `held` counts it as open until it is closed."""
    left_s: float | None = context.time_remaining()  # grpc-stubs say float
    _DEADLINE_S.set(None if left_s is None else asyncio.get_running_loop().time() + left_s)
    tenant = await _admitted(service, method, context)
    whose = _whose(tenant)
    if not isinstance(request, Incoming):
        held.callback(ADMISSION.open_rpc(whose))
        check(request)
        return tenant, request
    request.known(whose, ADMISSION)
    held.callback(ADMISSION.open_rpc(whose))
    if request.streams:
        return tenant, request
    message = await request.request()
    check(message)
    return tenant, message


async def _take_place(
    service: Service, method: str, held: contextlib.ExitStack, request: Any, context: Context
) -> None:
    """Have `held` hold the place that a call which answers once needs."""
    whose = _whose(PRINCIPAL.get().tenant)
    if method in getattr(service, "frees", ()):
        held.enter_context(ADMISSION.freeing(whose))
    elif method in getattr(service, "waits", ()):
        held.enter_context(ADMISSION.stream(whose))
    elif hasattr(request, "__anext__"):
        held.enter_context(ADMISSION.stream(whose))
        held.callback(await ADMISSION.upload(whose))
    else:
        held.callback(await _at_work(whose, request, context))


async def _at_work(whose: str, request: object, context: Context) -> Callable[[], None]:
    size_bytes = request.ByteSize() if isinstance(request, Message) else 0
    return await ADMISSION.begin(whose, size_bytes=size_bytes, patience_s=context.time_remaining())


def _whose(tenant: Tenant | None) -> str:
    return OPERATORS if tenant is None else tenant.name


def unary(
    method: Callable[[S, T, Q], Awaitable[A]],
) -> Callable[[S, Q, Context], Awaitable[A]]:
    """Wrap an RPC that answers once. It keeps its place until the peer has taken the answer."""
    name = method.__name__

    @functools.wraps(method)
    async def rpc(self: S, request: Any, context: Context) -> A:
        incoming = request
        try:
            with contextlib.ExitStack() as held:
                tenant, request = await _begin(self, name, held, request, context)
                with GUARD.call(self.authenticate, CallCredentials.by(context)):
                    await _take_place(self, name, held, request, context)
                    answer = await method(self, tenant, request)
                if isinstance(incoming, Incoming):
                    incoming.after.push(held.pop_all())
                return answer
        except Exception as error:
            del request  # grpc keeps the frame for a while, and a refusal must not keep what was refused
            await _abort(context, error)

    return rpc


def streaming(
    method: Callable[[S, T, Q], AsyncIterator[A]],
) -> Callable[[S, Q, Context], AsyncIterator[A]]:
    """Wrap an RPC that answers with a stream."""
    name = method.__name__

    @functools.wraps(method)
    async def rpc(self: S, request: Any, context: Context) -> AsyncIterator[A]:
        try:
            with contextlib.ExitStack() as held:
                tenant, request = await _begin(self, name, held, request, context)
                whose = _whose(tenant)
                held.enter_context(ADMISSION.stream(whose))
                guard = held.enter_context(GUARD.call(self.authenticate, CallCredentials.by(context)))
                if name in getattr(self, "works", ()):
                    held.callback(await _at_work(whose, request, context))
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
    if isinstance(error, DecodeError):
        # Of a client's stream; grpc decodes each message where the servicer reads it.
        error = not_decoded(error)
    if not isinstance(error, AirlockError):
        log.error("fault", exc_info=error)
        error = Internal("internal error in the gateway; its log has the details")
    refused(error)
    # grpc-stubs do not know this method, nor that it never returns.
    abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
    await abort(rpc_status.to_status(status_of(error)))


def status_of(error: AirlockError) -> status_pb2.Status:
    """Return the google.rpc.Status of an error."""
    told: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=error.details)]
    if isinstance(error, InvalidArgument) and error.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=field, description=said)
            for field, said in error.violations.items()
        ]
        told.append(error_details_pb2.BadRequest(field_violations=violations))
    if isinstance(error, QuotaExceeded):
        violation = error_details_pb2.QuotaFailure.Violation(
            subject=error.details.get("rule") or error.details.get("quota", ""), description=str(error)
        )
        told.append(error_details_pb2.QuotaFailure(violations=[violation]))
    if isinstance(error, Overloaded | InProgress) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(error.retry_after_s * 1_000_000))
        told.append(retry)
    details = [any_pb2.Any() for _ in told]
    for detail, message in zip(details, told, strict=True):
        detail.Pack(message)
    code = code_pb2.Code.Value(error.code.name)
    return status_pb2.Status(code=code, message=str(error), details=details)
