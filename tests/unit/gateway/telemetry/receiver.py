"""A real OTLP receiver in this process: what a collector would be sent, to be looked at."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received(trace_service_pb2_grpc.TraceServiceServicer):
    """All spans that came."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)

    async def Export(self, request: Any, context: object) -> Any:  # noqa: N802 - grpc's name
        for group in request.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in group.resource.attributes})
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name, in the order in which they began."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Received]:
    """Receive spans until the block ends."""
    received = Received()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(received, server)
    received.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield received
    finally:
        await server.stop(None)


def reported(span: Span) -> dict[str, Any]:
    """Return a span's attributes, those that are texts and numbers."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes}
