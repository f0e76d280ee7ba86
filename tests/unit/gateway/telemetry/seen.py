"""A telemetry that keeps what it receives, for tests to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from gateway.config.operation_settings import TelemetrySettings
from gateway.telemetry.telemetry import BoundedNames, Instruments, Telemetry


@dataclass(frozen=True)
class Seen:
    """What was reported."""

    telemetry: Telemetry
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, metric: str) -> list[tuple[Mapping[str, Any], Any]]:
        """Return the labels and the point of each series of a metric."""
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        found = [one for scope in scopes for one in scope.metrics if one.name == metric]
        return [(dict(point.attributes or {}), point) for one in found for point in one.data.data_points]


def watching(**settings: Any) -> Seen:
    """Return a telemetry that is on."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    asked = TelemetrySettings.model_validate(
        {"otlp_endpoint": "http://127.0.0.1:4317", "metrics_listen": "127.0.0.1:0", **settings}
    )
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(asked.sample_ratio), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("airlock")
    telemetry = Telemetry(
        provider.get_tracer("airlock"), Instruments(meter), asked, BoundedNames(asked.tenants_in_metrics)
    )
    return Seen(telemetry, exporter, reader)
