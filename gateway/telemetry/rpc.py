"""The edge, seen: a span and a time for each RPC, the trace of whoever calls taken up, and ids on each line of the log.

The interceptor is in the way of Airlock's own services only, and only where somebody is told. It knows no tenant and no
error: gateway/serving/edge.py says both, with `admitted` and `refused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog
from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.errors import AirlockError
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry, failed

_OURS = "/gateway.v1."
_CARRIED = frozenset({"traceparent", "tracestate"})
_PROPAGATOR = TraceContextTextMapPropagator()
_GRPC = "grpc"


@dataclass
class _Call:
    """What the edge found out about the RPC under way."""

    span: Span
    tenant: str = ""
    code: str = "OK"
    reason: str | None = None


_CALL: ContextVar[_Call | None] = ContextVar("rpc", default=None)


def admitted(tenant: str) -> None:
    """Take down whose call it is: on each line that is logged from now on, and on its span."""
    structlog.contextvars.bind_contextvars(tenant=tenant)
    call = _CALL.get()
    if call is not None:
        call.tenant = tenant
        call.span.set_attribute(a.TENANT, tenant)


def refused(error: AirlockError) -> None:
    """Take down how the call ends, where it ends with an error."""
    call = _CALL.get()
    if call is not None:
        call.code, call.reason = error.code.name, error.reason


class RpcInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Puts a span and a time around each RPC; a handler is wrapped once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a method, wrapped; None where there is no such method."""
        method: str = handler_call_details.method
        if method in self._wrapped:
            return self._wrapped[method]
        handler = await continuation(handler_call_details)
        if handler is None or not method.startswith(_OURS):
            return handler
        self._wrapped[method] = wrapped = self._around(method.removeprefix("/"), handler)
        return wrapped

    def _around(self, method: str, handler: Any) -> Any:
        asked, given = (
            "stream" if many else "unary" for many in (handler.request_streaming, handler.response_streaming)
        )
        kind = f"{asked}_{given}"
        inner = getattr(handler, kind)

        async def answer(request: Any, rpc: Any) -> Any:
            watched = _Watched(self._telemetry, method, rpc)
            try:
                return await inner(request, rpc)
            except BaseException as error:
                watched.failed(error)
                raise
            finally:
                watched.end()

        async def answers(request: Any, rpc: Any) -> AsyncIterator[Any]:
            watched = _Watched(self._telemetry, method, rpc)
            try:
                async for message in inner(request, rpc):
                    yield message
            except BaseException as error:
                watched.failed(error)
                raise
            finally:
                watched.end()

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            answers if handler.response_streaming else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class _Watched:
    """One RPC from its first message to its end. Its task is its own, so that what is set here goes with it."""

    def __init__(self, telemetry: Telemetry, method: str, rpc: Any) -> None:
        self._telemetry = telemetry
        self._method = method
        self._started_s = telemetry.clock()
        carried: Mapping[str, str] = {
            key: value for key, value in rpc.invocation_metadata() or () if key in _CARRIED and isinstance(value, str)
        }
        span = telemetry.tracer.start_span(
            method,
            context=_PROPAGATOR.extract(carried) if carried else None,
            kind=SpanKind.SERVER,
            attributes={a.RPC_SYSTEM: _GRPC, a.RPC_METHOD: method},
        )
        context.attach(trace.set_span_in_context(span))
        self._call = _Call(span)
        _CALL.set(self._call)

    def failed(self, error: BaseException) -> None:
        """Take down an end that the edge had no word in."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._call.code, self._call.reason = "CANCELLED", "CANCELLED"
        elif self._call.reason is None:
            self._call.code, self._call.reason = "UNKNOWN", type(error).__name__

    def end(self) -> None:
        """Count the RPC, and end its span."""
        call, telemetry = self._call, self._telemetry
        taken_s = telemetry.clock() - self._started_s
        labels = {a.RPC_SYSTEM: _GRPC, a.RPC_METHOD: self._method, a.RPC_STATUS: call.code, a.ERROR_TYPE: call.reason}
        telemetry.instruments.add("rpc.server.call.duration", taken_s, labels)
        tenant = telemetry.tenants(call.tenant) if call.tenant else ""
        telemetry.instruments.add("airlock.tenant.rpc.duration", taken_s, {a.TENANT: tenant, a.ERROR_TYPE: call.reason})
        call.span.set_attribute(a.RPC_STATUS, call.code)
        if call.reason is not None:
            failed(call.span, call.reason)
        call.span.end()
