"""The edge: every RPC goes through one of these wrappers. It authenticates, and it translates errors, once.

A servicer says in `scope` which of a key's scopes its RPCs need; `caller(context)` tells an RPC by which key it came.

An RPC is written as `async def CallTool(self, tenant, request, context)`; what it raises becomes a status with a
google.rpc.ErrorInfo whose reason a client can branch on.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from gateway.errors import AirlockError, Internal, QuotaExceeded, ScopeMissing, from_sandbox
from gateway.principal import CALLER, Caller, Principal
from gateway.shares import Shares
from gateway.tenants import Tenant
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)
_DOMAIN = "airlock"
# A quarter of what the server takes in all (server.py), streams that wait included.
CALLS_OF_A_TENANT = 512
_CALLS = Shares(CALLS_OF_A_TENANT, "calls")
Context = grpc.aio.ServicerContext[Any, Any]


class Authenticator(Protocol):
    """Tells whose call it is; Unauthenticated when nobody's. One that knows no keys answers with the tenant alone."""

    async def __call__(self, context: Context) -> Principal | Tenant: ...


class Service(Protocol):
    """What a servicer must have for the wrappers."""

    scope: str
    authenticate: Authenticator


S = TypeVar("S", bound=Service)
Q = TypeVar("Q")
A = TypeVar("A")


def caller(context: Context) -> Caller:
    """Return the key that the call under way came with."""
    del context  # grpc's have no room for it; every RPC has a task of its own, and so a variable of its own
    return CALLER.get(Caller())


async def _admitted(service: Service, context: Context) -> Tenant:
    """Return the tenant of a call that may be made; Unauthenticated or ScopeMissing for others."""
    found = await service.authenticate(context)
    principal = Principal(found) if isinstance(found, Tenant) else found
    if principal.tenant is None:
        raise ScopeMissing("an operator's key belongs to no tenant: make one with `airlock key create --tenant NAME`")
    if service.scope not in principal.scopes:
        raise ScopeMissing(
            f"this key is for {', '.join(principal.scopes)}, and the call needs {service.scope}: make a key with "
            f"`airlock key create --tenant {principal.tenant.name} --scope {service.scope}`",
            scope=service.scope,
        )
    CALLER.set(principal.caller)
    return principal.tenant


def unary(
    method: Callable[[S, Tenant, Q, Context], Awaitable[A]],
) -> Callable[[S, Q, Context], Awaitable[A]]:
    """Wrap an RPC that answers once."""

    @functools.wraps(method)
    async def rpc(self: S, request: Q, context: Context) -> A:
        try:
            tenant = await _admitted(self, context)
            with _CALLS.hold(tenant.name):
                return await method(self, tenant, request, context)
        except Exception as error:
            del request  # grpc keeps the frame for a while, and a refusal must not keep what was refused
            await _abort(context, error)

    return rpc


def streaming(
    method: Callable[[S, Tenant, Q, Context], AsyncIterator[A]],
) -> Callable[[S, Q, Context], AsyncIterator[A]]:
    """Wrap an RPC that answers with a stream."""

    @functools.wraps(method)
    async def rpc(self: S, request: Q, context: Context) -> AsyncIterator[A]:
        try:
            tenant = await _admitted(self, context)
            with _CALLS.hold(tenant.name):
                async for answer in method(self, tenant, request, context):
                    yield answer
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
        error = Internal("a fault of the gateway; its log has the details")
    # grpc-stubs do not know this method, nor that it never returns.
    abort: Callable[[grpc.Status], Awaitable[NoReturn]] = context.abort_with_status  # type: ignore[attr-defined]
    await abort(rpc_status.to_status(status_of(error)))


def status_of(error: AirlockError) -> status_pb2.Status:
    """Return the google.rpc.Status of an error."""
    told: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=error.details)]
    if isinstance(error, QuotaExceeded):
        violation = error_details_pb2.QuotaFailure.Violation(
            subject=error.details.get("rule") or error.details.get("quota", ""), description=str(error)
        )
        told.append(error_details_pb2.QuotaFailure(violations=[violation]))
        if error.retry_after_s is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMicroseconds(round(error.retry_after_s * 1_000_000))
            told.append(retry)
    details = [any_pb2.Any() for _ in told]
    for detail, message in zip(details, told, strict=True):
        detail.Pack(message)
    code = code_pb2.Code.Value(error.code.name)
    return status_pb2.Status(code=code, message=str(error), details=details)
