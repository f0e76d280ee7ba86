"""The client's end of a trace: its context travels with each RPC in W3C headers.

The client has no settings of its own: set OpenTelemetry's tracer provider, as for any other library. Without one
nothing is recorded or sent, and OpenTelemetry is not imported here: code that sets a provider has imported it.
"""

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Metadata = Sequence[tuple[str, str]]

# As OpenTelemetry's conventions name them.
_RPC_SYSTEM, _RPC_METHOD = "rpc.system.name", "rpc.method"


def _is_traced() -> bool:
    """Return whether this process may have a tracer provider: set by its code, or named by OpenTelemetry's variable."""
    return "opentelemetry.trace" in sys.modules or "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


@functools.cache
def _tracer() -> Any:
    from opentelemetry import trace  # noqa: PLC0415 - see the top of the module

    return trace.get_tracer("airlock.client")


def with_trace(metadata: Metadata) -> Metadata:
    """Return the metadata of an RPC with the current trace context, unchanged if there is none."""
    if not _is_traced():
        return metadata
    from opentelemetry import trace  # noqa: PLC0415 - see the top of the module
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - as above

    if not trace.get_current_span().get_span_context().is_valid:
        return metadata
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return (*metadata, *carrier.items())


@contextmanager
def calling(method: Any, metadata: Metadata) -> Iterator[Metadata]:
    """Run the block in a span for an RPC; yields the metadata to send."""
    if not _is_traced():
        yield metadata
        return
    from opentelemetry import trace  # noqa: PLC0415 - see the top of the module

    name = _name(method)
    attributes = {_RPC_SYSTEM: "grpc", _RPC_METHOD: name}
    span = _tracer().start_span(name, kind=trace.SpanKind.CLIENT, attributes=attributes)
    if not span.get_span_context().is_valid:
        yield metadata
        return
    with trace.use_span(span, end_on_exit=True, record_exception=False):
        yield with_trace(metadata)


def _name(method: Any) -> str:
    """Return the name of a grpc multicallable, which has no public attribute for it."""
    name = getattr(method, "_method", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).removeprefix("/") or "rpc"
