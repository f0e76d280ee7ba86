"""Exports spans to an OTLP receiver and metrics to scrapers. The only module that uses the SDK."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import NoOpTracer, Tracer
from opentelemetry.util.types import Attributes, AttributeValue
from prometheus_client import CollectorRegistry, start_http_server

from gateway.config.operation_settings import TelemetrySettings
from gateway.errors import Misconfigured
from gateway.redaction.redactor import WELL_KNOWN_SECRETS
from gateway.support.version import airlock_version

log = structlog.get_logger(__name__)
# A receiver that does not answer must not keep a gateway from stopping.
_EXPORT_S = 2
_NAME = "airlock"


@contextlib.asynccontextmanager
async def exported(
    settings: TelemetrySettings, *, process: str, worker: int
) -> AsyncIterator[tuple[Tracer, Meter, str | None]]:
    """Export until the block ends, then flush; the last value is the HOST:PORT where metrics are served."""
    service = {"service.name": "airlock-gateway", "service.version": airlock_version(), "service.instance.id": process}
    resource = Resource.create(service)
    with contextlib.ExitStack() as stack:
        tracer = _tracer_of(settings, resource, stack)
        meter, address = _meter_of(settings, resource, worker, stack)
        try:
            yield tracer, meter, address
        finally:
            # Flushing waits for the network.
            await asyncio.to_thread(stack.pop_all().close)


def _tracer_of(settings: TelemetrySettings, resource: Resource, stack: contextlib.ExitStack) -> Tracer:
    """Return a tracer whose spans are exported in batches in the background; `stack` flushes the rest."""
    endpoint = settings.otlp_endpoint
    if endpoint is None:
        return NoOpTracer()
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(settings.sample_ratio), resource=resource, shutdown_on_exit=False
    )
    exporter = _RedactingExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=_EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    stack.callback(provider.shutdown)
    return provider.get_tracer(_NAME)


def _meter_of(
    settings: TelemetrySettings, resource: Resource, worker: int, stack: contextlib.ExitStack
) -> tuple[Meter, str | None]:
    """Return a meter, and the HOST:PORT where its metrics are served."""
    if settings.metrics_listen is None:
        return NoOpMeter(_NAME), None
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry, scope_info_enabled=False)
    # A scrape has no exemplars, and collecting them is most of the cost of a measurement.
    provider = MeterProvider([reader], resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
    stack.callback(provider.shutdown)
    host, _, port = settings.metrics_listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port) + worker if int(port) else 0, host.strip("[]"), registry)
    except OSError as error:
        raise Misconfigured(f"telemetry.metrics_listen {host}:{int(port) + worker}: {error.strerror}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(stop)
    address = f"{host}:{server.server_port}"
    log.info("metrics are served", address=address)
    return provider.get_meter(_NAME), address


class _RedactingExporter(OTLPSpanExporter):
    """Exports spans with names, attributes and events redacted."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return super().export([_redacted(span) for span in spans])


def _redacted(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=WELL_KNOWN_SECRETS.shown(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_attributes(span.attributes),
        events=[Event(event.name, _attributes(event.attributes), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _attributes(attributes: Attributes) -> Mapping[str, AttributeValue]:
    return {name: _value(value) for name, value in (attributes or {}).items()}


def _value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return WELL_KNOWN_SECRETS.shown(value)
    if isinstance(value, Sequence):
        return [WELL_KNOWN_SECRETS.shown(one) if isinstance(one, str) else one for one in value]
    return value
