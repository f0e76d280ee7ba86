"""The client's end of a trace: its context goes with each RPC, in W3C's headers.

The client has no settings of its own: whoever uses it sets OpenTelemetry's tracer provider, as for any other library,
and without one nothing is recorded or sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.telemetry import attributes as a

Metadata = Sequence[tuple[str, str]]
_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER = trace.get_tracer("airlock.client")


def with_trace(metadata: Metadata) -> Metadata:
    """Return the metadata of an RPC with the context that it is made in; as it is where there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return metadata
    carried: dict[str, str] = {}
    _PROPAGATOR.inject(carried)
    return (*metadata, *carried.items())


@contextmanager
def calling(method: Any, metadata: Metadata) -> Iterator[Metadata]:
    """Have a span for an RPC until the block ends; yields the metadata that it is made with."""
    name = _name(method)
    span = _TRACER.start_span(name, kind=SpanKind.CLIENT, attributes={a.RPC_SYSTEM: "grpc", a.RPC_METHOD: name})
    if not span.get_span_context().is_valid:
        yield metadata
        return
    with trace.use_span(span, end_on_exit=True, record_exception=False):
        yield with_trace(metadata)


def _name(method: Any) -> str:
    """Return the name of what grpc calls a multicallable; it has it, and tells nobody."""
    name = getattr(method, "_method", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).removeprefix("/") or "rpc"
