"""What the other packages record with: a tracer, the settings, and every metric.

docs/telemetry.md lists the labels of the metrics; a test compares the names and units.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.config.operation_settings import TelemetrySettings
from gateway.telemetry import attributes as a

PROPAGATOR = TraceContextTextMapPropagator()
OTHER = "other"
# With a label of their own in metrics that have tenants, too.
_MODELS = 50
Read = Callable[[], float | Mapping[Any, float]]
"""Reads a gauge or a counter: a number, or one for each value of a label. Called in the thread of the scrape."""
# From a policy decision to a long run; a call takes a millisecond or two.
_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120, 600)
# As the conventions define them.
_MODEL_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))
_GROUP = tuple(2**power for power in range(9))


class BoundedNames:
    """Maps the first names to themselves and all later ones to `other`, so that more tenants cost no memory."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        """Give a label to `limit` names, the `known` ones always among them."""
        self._limit = limit
        self._names = set(sorted(known)[:limit])

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) < self._limit:
            self._names.add(name)
            return name
        return OTHER


@dataclass(frozen=True)
class Metric:
    """A metric; the count of a histogram is also the rate of what it times."""

    name: str
    kind: Literal["counter", "read_counter", "updown", "gauge", "histogram"]
    unit: str
    description: str
    buckets: Sequence[float] = _SECONDS


METRICS = (
    Metric("rpc.server.call.duration", "histogram", "s", "RPCs by method, status and reason."),
    Metric("airlock.tenant.rpc.duration", "histogram", "s", "RPCs by tenant; the tenant may be `other` or empty."),
    Metric("airlock.tool.call.duration", "histogram", "s", "Tool calls, judgement included; the tool may be `other`."),
    Metric("airlock.tenant.tool.calls", "counter", "{call}", "Tool calls by tenant."),
    Metric("airlock.policy.decision.duration", "histogram", "s", "Policy decisions, quotas included."),
    Metric("airlock.sandbox.start.duration", "histogram", "s", "Sandbox creations, failed ones included."),
    Metric("airlock.sandbox.acquire.duration", "histogram", "s", "Waits of operations for their thread's sandbox."),
    Metric("airlock.sandbox.live", "gauge", "{sandbox}", "Sandboxes that this process has or is creating."),
    Metric("airlock.sandbox.pool", "gauge", "{sandbox}", "Pooled sandboxes: `ready` or `making`."),
    Metric("airlock.sandbox.pool.claims", "read_counter", "{claim}", "New threads: pool `hit`, `miss` or `refused`."),
    Metric("airlock.sandbox.states", "gauge", "{sandbox}", "Sandboxes by state; `idle_stopped` is the engine's total."),
    Metric("airlock.sandbox.cpu.time", "read_counter", "s", "CPU time of sandboxes, with sandbox_usage_s."),
    Metric("airlock.sandbox.memory.usage", "gauge", "By", "Memory of sandboxes, with sandbox_usage_s."),
    Metric("airlock.sandbox.pids", "gauge", "{process}", "Processes and threads in sandboxes, with sandbox_usage_s."),
    Metric("airlock.run.live", "updown", "{run}", "Runs that this process hosts."),
    Metric("airlock.run.duration", "histogram", "s", "Runs by status, timed anew after an approval."),
    Metric("airlock.network.connections", "counter", "{connection}", "Connections of sandboxes that are over."),
    Metric("airlock.network.io", "counter", "By", "Bytes of connections: `up` from sandboxes, `down` to them."),
    Metric("airlock.policy.drift", "gauge", "{policy}", "Policy files that differ from the policy in force."),
    Metric("airlock.disk.free", "gauge", "By", "Free bytes of the disks that the gateway uses."),
    Metric("airlock.disk.short", "gauge", "{disk}", "1 if less than sandbox.disk_reserve_mib is free, else 0."),
    Metric("airlock.run.waiting", "gauge", "{run}", "Runs in the database that wait for an approval."),
    Metric("airlock.approval.waiting", "gauge", "{approval}", "Pending approvals in the database."),
    Metric(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        "Requests to models, without their wait.",
        _MODEL_SECONDS,
    ),
    Metric("gen_ai.client.token.usage", "histogram", "{token}", "Tokens as the endpoint reports them.", _TOKENS),
    Metric("airlock.model.tokens", "counter", "{token}", "Tokens by tenant and model, of failed requests too."),
    Metric("airlock.model.cost", "counter", "{dollar}", "Cost in US dollars by tenant and model."),
    Metric(
        "airlock.model.first_token.duration", "histogram", "s", "Times to the first text of an answer.", _MODEL_SECONDS
    ),
    Metric("airlock.admission.at_work", "gauge", "{call}", "Calls in progress, of all tenants."),
    Metric("airlock.admission.limit", "gauge", "{call}", "Calls that may start at once; lower under load."),
    Metric("airlock.admission.waiting", "gauge", "{call}", "Queued calls."),
    Metric("airlock.admission.streams", "gauge", "{stream}", "Open streams that only wait."),
    Metric("airlock.admission.admitted", "read_counter", "{call}", "Admitted calls."),
    Metric("airlock.admission.refused", "read_counter", "{call}", "Calls that admission refused."),
    Metric("airlock.admission.waited", "read_counter", "{call}", "Calls that were queued before admission."),
    Metric("airlock.database.write.duration", "histogram", "s", "Transactions of the database writer."),
    Metric("airlock.database.write.group_size", "histogram", "{write}", "Writes in one transaction.", _GROUP),
)


class Instruments:
    """The metrics, ready to be recorded. A label with the value None is left out."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._metrics = {metric.name: metric for metric in METRICS}
        self._add: dict[str, Callable[[float, Mapping[str, str]], None]] = {}
        for metric in METRICS:
            described = metric.name, metric.unit, metric.description
            if metric.kind == "histogram":
                histogram = meter.create_histogram(*described, explicit_bucket_boundaries_advisory=metric.buckets)
                self._add[metric.name] = histogram.record
            elif metric.kind == "counter":
                self._add[metric.name] = meter.create_counter(*described).add
            elif metric.kind == "updown":
                self._add[metric.name] = meter.create_up_down_counter(*described).add

    def add(self, name: str, amount: float, labels: Mapping[str, str | None] | None = None) -> None:
        """Add to a counter, or record a value of a histogram; KeyError for an unknown metric."""
        present = {} if labels is None else {key: value for key, value in labels.items() if value is not None}
        self._add[name](amount, present)

    def read(self, name: str, read: Read, label: str = "") -> None:
        """Register the callback of a gauge or an observable counter; it must not block."""
        metric = self._metrics[name]

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            value = read()
            if isinstance(value, int | float):
                return [Observation(value)]
            return [Observation(number, {label: key}) for key, number in list(value.items())]

        counter = metric.kind == "read_counter"
        create = self._meter.create_observable_counter if counter else self._meter.create_observable_gauge
        create(metric.name, [observe], metric.unit, metric.description)


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
    models: BoundedNames = field(default_factory=lambda: BoundedNames(_MODELS))

    @classmethod
    def off(cls) -> Self:
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
