"""Observes RPCs: a span and a duration for each, the caller's trace context, and ids on each log line.

The interceptor wraps Airlock's own services, and only if telemetry is on. gateway/serving/edge.py reports the tenant
and the error of an RPC with `admitted` and `refused`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog
from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind

from gateway.errors import AirlockError
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import PROPAGATOR, Telemetry, failed

OURS = "/gateway.v1."
"""What the full names of Airlock's own methods begin with."""
_CARRIED = frozenset({"traceparent", "tracestate"})
_GRPC = "grpc"


@dataclass
class _Call:
    span: Span
    tenant: str = ""
    code: str = "OK"
    reason: str | None = None


_CALL: ContextVar[_Call | None] = ContextVar("rpc", default=None)


def admitted(tenant: str) -> None:
    """Record the tenant of the call, for its log lines and its span."""
    structlog.contextvars.bind_contextvars(tenant=tenant)
    call = _CALL.get()
    if call is not None:
        call.tenant = tenant
        call.span.set_attribute(a.TENANT, tenant)


def refused(error: AirlockError) -> None:
    """Record the error that the call ends with."""
    call = _CALL.get()
    if call is not None:
        call.code, call.reason = error.code.name, error.reason


class WrappingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Wraps the handler of each method, once."""

    def __init__(self, wrap: Callable[[str, Any], Any]) -> None:
        """`wrap` returns the handler of a method, by its full name, in place of the given one."""
        self._wrap = wrap
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the wrapped handler of a method; None if there is no such method."""
        method: str = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]


class RpcInterceptor(WrappingInterceptor):
    """Observes each RPC of Airlock's own services."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__(self._around)
        self._telemetry = telemetry

    def _around(self, name: str, handler: Any) -> Any:
        if not name.startswith(OURS):
            return handler
        method = name.removeprefix("/")
        kind = "_".join(
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, kind)

        async def answer(request: Any, rpc: Any) -> Any:
            with self._observed(method, rpc):
                return await inner(request, rpc)

        async def answers(request: Any, rpc: Any) -> AsyncIterator[Any]:
            with self._observed(method, rpc):
                async for message in inner(request, rpc):
                    yield message

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            answers if handler.response_streaming else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @contextlib.contextmanager
    def _observed(self, method: str, rpc: Any) -> Iterator[None]:
        """Observe one RPC. It is served in a task of its own, so its context need not be restored."""
        telemetry, started_s = self._telemetry, self._telemetry.clock()
        carrier: Mapping[str, str] = {
            key: value for key, value in rpc.invocation_metadata() or () if key in _CARRIED and isinstance(value, str)
        }
        attributes = {a.RPC_SYSTEM: _GRPC, a.RPC_METHOD: method}
        parent = PROPAGATOR.extract(carrier) if carrier else None
        span = telemetry.tracer.start_span(method, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        context.attach(trace.set_span_in_context(span))
        call = _Call(span)
        _CALL.set(call)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            call.code, call.reason = "CANCELLED", "CANCELLED"
            raise
        except BaseException as error:
            if call.reason is None:  # the edge did not report it
                call.code, call.reason = "UNKNOWN", type(error).__name__
            raise
        finally:
            self._record(method, call, telemetry.clock() - started_s)

    def _record(self, method: str, call: _Call, duration_s: float) -> None:
        telemetry = self._telemetry
        labels = {a.RPC_SYSTEM: _GRPC, a.RPC_METHOD: method, a.RPC_STATUS: call.code, a.ERROR_TYPE: call.reason}
        telemetry.instruments.add("rpc.server.call.duration", duration_s, labels)
        labels = {a.TENANT: telemetry.tenants(call.tenant) if call.tenant else "", a.ERROR_TYPE: call.reason}
        telemetry.instruments.add("airlock.tenant.rpc.duration", duration_s, labels)
        call.span.set_attribute(a.RPC_STATUS, call.code)
        if call.reason is not None:
            failed(call.span, call.reason)
        call.span.end()
