"""Defines every metric. docs/telemetry.md lists their labels; a test compares the names and units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

OTHER = "other"
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
    Metric("airlock.policy.drift", "gauge", "{policy}", "Policy files that differ from the policy in force."),
    Metric("airlock.disk.free", "gauge", "By", "Free bytes of the disks that the gateway uses."),
    Metric("airlock.disk.short", "gauge", "{disk}", "1 if less than sandbox.disk_reserve_mib is free, else 0."),
    Metric("airlock.run.waiting", "gauge", "{run}", "Runs in the database that wait for an approval."),
    Metric("airlock.approval.waiting", "gauge", "{approval}", "Pending approvals in the database."),
    Metric("gen_ai.client.operation.duration", "histogram", "s", "Inferences, queueing included.", _MODEL_SECONDS),
    Metric("gen_ai.client.token.usage", "histogram", "{token}", "Tokens as the endpoint reports them.", _TOKENS),
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
