"""Redacts spans before export, whichever code set an attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.util.types import Attributes, AttributeValue

from gateway.redaction.redactor import WELL_KNOWN_SECRETS


class RedactingExporter(SpanExporter):
    """Exports spans through another exporter with names, attributes and events redacted."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_redacted(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


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
