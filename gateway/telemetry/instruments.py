"""Every metric, in one table: what it is called, counts and is told apart by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from gateway.telemetry import attributes as a

Labels = Mapping[str, str]
Read = Callable[[], float | Iterable[tuple[float, Labels]]]
"""Reads a gauge or a counter: a number, or one for each set of labels. Called in the thread of whoever scrapes."""

# From a policy decision to a long run; a call takes a millisecond or two.
_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    120,
    600,
)
# The conventions' own.
_MODEL_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_GROUP = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Metric:
    """A metric; a histogram's count is also the rate of what it times."""

    name: str
    kind: Literal["counter", "read_counter", "updown", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    description: str
    buckets: Sequence[float] = _SECONDS


METRICS = (
    Metric(
        "rpc.server.call.duration",
        "histogram",
        "s",
        (a.RPC_SYSTEM, a.RPC_METHOD, a.RPC_STATUS, a.ERROR_TYPE),
        "RPCs: their rate, their errors by status and by reason, and how long they took.",
    ),
    Metric(
        "airlock.tenant.rpc.duration",
        "histogram",
        "s",
        (a.TENANT, a.ERROR_TYPE),
        "RPCs by tenant; tenants past telemetry.tenants_in_metrics are `other`, no tenant is empty.",
    ),
    Metric(
        "airlock.tool.call.duration",
        "histogram",
        "s",
        (a.TOOL_NAME, a.VERDICT, a.OUTCOME),
        "Tool calls, judgement included; a tool that Airlock does not know is `other`.",
    ),
    Metric("airlock.tenant.tool.calls", "counter", "{call}", (a.TENANT, a.VERDICT), "Tool calls by tenant."),
    Metric(
        "airlock.policy.decision.duration",
        "histogram",
        "s",
        (),
        "How long the policy took over a call, with the quotas that it takes.",
    ),
    Metric(
        "airlock.sandbox.start.duration",
        "histogram",
        "s",
        (a.ERROR_TYPE,),
        "Sandboxes made; one that could not be made has an error.type.",
    ),
    Metric(
        "airlock.sandbox.acquire.duration",
        "histogram",
        "s",
        (),
        "How long an operation waited for its thread's sandbox; next to nothing where that lives.",
    ),
    Metric("airlock.sandbox.live", "gauge", "{sandbox}", (), "Sandboxes that this process keeps, or is making."),
    Metric(
        "airlock.sandbox.pool",
        "gauge",
        "{sandbox}",
        (a.POOL_STATE,),
        "Sandboxes that this process made before anybody asked: `ready`, or `making`.",
    ),
    Metric(
        "airlock.sandbox.pool.claims",
        "read_counter",
        "{claim}",
        (a.POOL_CLAIM,),
        "New threads that asked the pool: `hit`, `miss` where none was ready, `refused` where one was not fit.",
    ),
    Metric(
        "airlock.sandbox.states",
        "gauge",
        "{sandbox}",
        (a.SANDBOX_STATE,),
        "Sandboxes that are `creating` or `running` in this process, to be added up over gateways, and `idle_stopped` "
        "of all gateways of the engine, of which to take the greatest.",
    ),
    Metric(
        "airlock.sandbox.cpu.time",
        "read_counter",
        "s",
        (),
        "Processor time of this process' sandboxes; only with telemetry.sandbox_usage_s, as the next two.",
    ),
    Metric("airlock.sandbox.memory.usage", "gauge", "By", (), "Memory that this process' sandboxes use together."),
    Metric("airlock.sandbox.pids", "gauge", "{process}", (), "Processes and threads in this process' sandboxes."),
    Metric("airlock.run.live", "updown", "{run}", (), "Runs that this process hosts."),
    Metric(
        "airlock.run.duration",
        "histogram",
        "s",
        (a.RUN_STATUS,),
        "Runs by how they ended; one that begins to wait for an approval is `waiting`, and is timed again from there.",
    ),
    Metric(
        "airlock.policy.drift",
        "gauge",
        "{policy}",
        (),
        "Policy files that are not what is in force and change nothing; the log names them.",
    ),
    Metric("airlock.disk.free", "gauge", "By", (a.DISK,), "Free bytes of the disks that the gateway needs room on."),
    Metric(
        "airlock.disk.short",
        "gauge",
        "{disk}",
        (a.DISK,),
        "1 where less than sandbox.disk_reserve_mib is free, else 0; on the engine's disk nothing may grow then.",
    ),
    Metric("airlock.run.waiting", "gauge", "{run}", (), "Runs in the database that wait for an approval."),
    Metric(
        "airlock.approval.waiting", "gauge", "{approval}", (), "Approvals in the database that nobody answered yet."
    ),
    Metric(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        (a.OPERATION, a.PROVIDER, a.REQUEST_MODEL, a.ERROR_TYPE),
        "Inferences, the wait for their turn included.",
        _MODEL_SECONDS,
    ),
    Metric(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        (a.OPERATION, a.PROVIDER, a.REQUEST_MODEL, a.TOKEN_TYPE),
        "Tokens of an inference, as the endpoint reports them.",
        _TOKENS,
    ),
    Metric("airlock.admission.at_work", "gauge", "{call}", (), "Calls that are under way, of all tenants."),
    Metric(
        "airlock.admission.limit",
        "gauge",
        "{call}",
        (),
        "Calls that may begin at once; fewer while work waits for processors.",
    ),
    Metric("airlock.admission.waiting", "gauge", "{call}", (), "Calls that wait for a place."),
    Metric("airlock.admission.streams", "gauge", "{stream}", (), "Streams that are open and only wait."),
    Metric("airlock.admission.admitted", "read_counter", "{call}", (), "Calls that were given a place."),
    Metric("airlock.admission.refused", "read_counter", "{call}", (), "Calls that were refused, for all was taken."),
    Metric("airlock.admission.waited", "read_counter", "{call}", (), "Calls that waited before they had a place."),
    Metric("airlock.database.write.duration", "histogram", "s", (), "Transactions of the database's writer."),
    Metric(
        "airlock.database.write.group_size",
        "histogram",
        "{write}",
        (),
        "Writes that one transaction took: 1 is no load, and more is what made it cheaper.",
        _GROUP,
    ),
)


class Instruments:
    """The metrics, ready to be counted. A label's value of None is left out."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._metrics = {metric.name: metric for metric in METRICS}
        self._add: dict[str, Callable[[float, Mapping[str, str]], None]] = {}
        for metric in METRICS:
            if metric.kind == "histogram":
                self._add[metric.name] = meter.create_histogram(
                    metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
                ).record
            elif metric.kind == "counter":
                self._add[metric.name] = meter.create_counter(metric.name, metric.unit, metric.description).add
            elif metric.kind == "updown":
                self._add[metric.name] = meter.create_up_down_counter(metric.name, metric.unit, metric.description).add

    def add(self, name: str, amount: float, labels: Mapping[str, str | None] | None = None) -> None:
        """Count, or record one value of a histogram; KeyError for a metric that is not in the table."""
        told = {} if labels is None else {key: value for key, value in labels.items() if value is not None}
        self._add[name](amount, told)

    def read(self, name: str, read: Read) -> None:
        """Have a gauge, or a counter that is kept elsewhere, read whenever somebody asks; it must not block."""
        metric = self._metrics[name]

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            value = read()
            if isinstance(value, int | float):
                return [Observation(value)]
            return [Observation(number, dict(labels)) for number, labels in value]

        counter = metric.kind == "read_counter"
        create = self._meter.create_observable_counter if counter else self._meter.create_observable_gauge
        create(metric.name, [observe], metric.unit, metric.description)
