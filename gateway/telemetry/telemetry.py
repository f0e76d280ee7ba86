"""What the other packages record with: a tracer, the metrics and the settings."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Self

from opentelemetry import metrics, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.config.operation_settings import TelemetrySettings
from gateway.telemetry import attributes as a
from gateway.telemetry.instruments import BoundedNames, Instruments

PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True)
class Telemetry:
    """Spans and metrics of one process; `Telemetry.off()` records nothing.

    Spans below an RPC's are created only if that one is sampled.
    """

    tracer: Tracer
    instruments: Instruments
    settings: TelemetrySettings
    tenants: BoundedNames
    metrics_address: str | None = None
    """HOST:PORT where this process serves its metrics; None if it does not."""
    clock: Callable[[], float] = field(default=time.perf_counter)

    @classmethod
    def off(cls) -> Self:
        """Return a telemetry that records nothing."""
        return cls(trace.NoOpTracer(), Instruments(metrics.NoOpMeter("airlock")), TelemetrySettings(), BoundedNames(0))

    @property
    def on(self) -> bool:
        """Whether anything is exported; if not, parts that only observe are left out."""
        return self.settings.on

    def child(self, name: str, attributes: Mapping[str, AttributeValue], kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """Return a span below the current one, for the caller to end; a no-op span if that one is not sampled."""
        if not trace.get_current_span().is_recording():
            return trace.INVALID_SPAN
        return self.tracer.start_span(name, kind=kind, attributes=dict(attributes))

    @contextmanager
    def within(
        self, name: str, attributes: Mapping[str, AttributeValue], kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Make a child the current span until the block ends."""
        span = self.child(name, attributes, kind)
        with current(span):
            try:
                yield span
            except BaseException as error:
                failed(span, type(error).__name__)
                raise
            finally:
                span.end()

    @contextmanager
    def timed(
        self,
        metric: str,
        labels: Mapping[str, str],
        name: str,
        attributes: Mapping[str, AttributeValue],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        """Make a child the current span until the block ends, and record its duration with the type of its error."""
        started_s, error_type = self.clock(), None
        try:
            with self.within(name, attributes, kind) as span:
                yield span
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            self.instruments.add(metric, self.clock() - started_s, {**labels, a.ERROR_TYPE: error_type})


@contextmanager
def current(span: Span) -> Iterator[None]:
    """Make a span the current one. It records no exceptions, whose text may be a tenant's."""
    if not span.get_span_context().is_valid:
        yield
        return
    with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield


def failed(span: Span, kind: str) -> None:
    """Mark a span as failed with an error type, never with the error's text."""
    span.set_attribute(a.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))


@asynccontextmanager
async def opened(settings: TelemetrySettings, *, process: str, worker: int = 0) -> AsyncIterator[Telemetry]:
    """Export what the settings ask for until the block ends, then flush.

    Each worker serves its metrics at a port of its own. Raises Misconfigured if that port is taken.
    """
    if not settings.on:
        yield Telemetry.off()
        return
    from gateway.telemetry import providers  # noqa: PLC0415 - a tenth of what a gateway imports

    async with providers.exported(settings, process=process, worker=worker) as (tracer, meter, address):
        yield Telemetry(tracer, Instruments(meter), settings, BoundedNames(settings.tenants_in_metrics), address)
