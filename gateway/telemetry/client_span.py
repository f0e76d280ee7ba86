"""The client's end of a trace: its context travels with each RPC in W3C headers.

The client has no settings of its own: set OpenTelemetry's tracer provider, as for any other library. Without one
nothing is recorded or sent.
"""

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
    """Return the metadata of an RPC with the current trace context, unchanged if there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return metadata
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return (*metadata, *carrier.items())


@contextmanager
def calling(method: Any, metadata: Metadata) -> Iterator[Metadata]:
    """Run the block in a span for an RPC; yields the metadata to send."""
    name = _name(method)
    span = _TRACER.start_span(name, kind=SpanKind.CLIENT, attributes={a.RPC_SYSTEM: "grpc", a.RPC_METHOD: name})
    if not span.get_span_context().is_valid:
        yield metadata
        return
    with trace.use_span(span, end_on_exit=True, record_exception=False):
        yield with_trace(metadata)


def _name(method: Any) -> str:
    """Return the name of a grpc multicallable, which has no public attribute for it."""
    name = getattr(method, "_method", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).removeprefix("/") or "rpc"
