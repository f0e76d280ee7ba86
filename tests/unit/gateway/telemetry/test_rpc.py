"""RPCs, seen: over a real channel, with a servicer as the gateway's are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from airlock.client_span import with_trace
from airlock.v1 import run_service_pb2
from gateway.errors import NotFound
from gateway.serving.edge import streaming, unary
from gateway.telemetry import attributes as a
from gateway.telemetry.rpc import RpcInterceptor
from gateway.tenancy.tenants import Tenant
from gateway.v1 import run_service_pb2_grpc
from tests.unit.gateway.telemetry.seen import Seen, watching

GET, WATCH = "gateway.v1.RunService/GetRun", "gateway.v1.RunService/WatchRun"


class Runs(run_service_pb2_grpc.RunServiceServicer):
    """Knows one run, and has a fault."""

    scope = "run"

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.parents: list[int] = []

    async def authenticate(self, context: object) -> Tenant:
        tenant = object.__new__(Tenant)
        object.__setattr__(tenant, "name", "acme")
        return tenant

    @unary
    async def GetRun(self, tenant: Tenant, request: Any) -> Any:  # noqa: N802 - grpc's name
        self.parents.append(trace.get_current_span().get_span_context().span_id)
        if request.run_id == "gone":
            raise NotFound("no run")
        if request.run_id == "fault":
            raise ZeroDivisionError
        return run_service_pb2.GetRunResponse()

    @streaming
    async def WatchRun(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        try:
            yield run_service_pb2.WatchRunResponse()
            await asyncio.sleep(0)
            if request.run_id == "endless":
                await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def seen() -> Seen:
    return watching()


@pytest.fixture
def servicer() -> Runs:
    return Runs()


@pytest.fixture
async def stub(seen: Seen, servicer: Runs) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=(RpcInterceptor(seen.telemetry),))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield run_service_pb2_grpc.RunServiceStub(channel)
    await server.stop(None)


async def _span_ended(seen: Seen) -> None:
    """Wait for the end of a call on the server, which may come after the client has its error."""
    async with asyncio.timeout(10):
        while not seen.spans:
            await asyncio.sleep(0)


def get(run_id: str = "r1") -> Any:
    return run_service_pb2.GetRunRequest(run_id=run_id)


async def test_an_rpc_is_a_span_and_a_time_by_the_conventions(seen: Seen, stub: Any, servicer: Runs) -> None:
    await stub.GetRun(get())
    span = seen.span(GET)
    assert span.kind is SpanKind.SERVER
    assert dict(span.attributes or {}) == {
        a.RPC_SYSTEM: "grpc",
        a.RPC_METHOD: GET,
        a.RPC_STATUS: "OK",
        a.TENANT: "acme",
    }
    assert span.context is not None
    assert servicer.parents == [span.context.span_id]
    ((labels, point),) = seen.points("rpc.server.call.duration")
    assert labels == {a.RPC_SYSTEM: "grpc", a.RPC_METHOD: GET, a.RPC_STATUS: "OK"}
    assert point.count == 1
    ((labels, _),) = seen.points("airlock.tenant.rpc.duration")
    assert labels == {a.TENANT: "acme"}


@pytest.mark.parametrize(
    "run_id, code, reason", [("gone", "NOT_FOUND", "NOT_FOUND"), ("fault", "INTERNAL", "INTERNAL")]
)
async def test_an_error_is_counted_by_its_code_and_its_reason(
    seen: Seen, stub: Any, run_id: str, code: str, reason: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.GetRun(get(run_id))
    assert raised.value.code().name == code
    await _span_ended(seen)
    ((labels, _),) = seen.points("rpc.server.call.duration")
    assert (labels[a.RPC_STATUS], labels[a.ERROR_TYPE]) == (code, reason)
    assert not seen.span(GET).status.is_ok
    assert seen.span(GET).events == ()


async def test_the_trace_of_the_caller_goes_on(seen: Seen, stub: Any) -> None:
    with watching().telemetry.tracer.start_as_current_span("of the client") as ours:
        await stub.GetRun(get(), metadata=with_trace(()))
    parent = seen.span(GET).parent
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (ours.get_span_context().trace_id, ours.get_span_context().span_id)


async def test_a_malformed_trace_is_as_none(seen: Seen, stub: Any) -> None:
    await stub.GetRun(get(), metadata=(("traceparent", "00-zz-1"), ("tracestate", ",,,")))
    assert seen.span(GET).parent is None


async def test_a_stream_is_one_span_to_its_end(seen: Seen, stub: Any) -> None:
    assert len([message async for message in stub.WatchRun(run_service_pb2.WatchRunRequest(run_id="r1"))]) == 1
    assert (seen.span(WATCH).attributes or {})[a.RPC_STATUS] == "OK"


async def test_a_stream_that_is_left_is_cancelled(seen: Seen, stub: Any, servicer: Runs) -> None:
    call = stub.WatchRun(run_service_pb2.WatchRunRequest(run_id="endless"))
    await call.read()
    call.cancel()
    await servicer.cancelled.wait()
    await _span_ended(seen)
    assert (seen.span(WATCH).attributes or {})[a.RPC_STATUS] == "CANCELLED"


def test_the_clients_metadata_is_as_it_was_without_a_trace() -> None:
    metadata = (("authorization", "Bearer x"),)
    assert with_trace(metadata) is metadata
