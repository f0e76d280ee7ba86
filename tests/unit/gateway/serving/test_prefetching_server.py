"""A server that takes many calls at once is like any other server to its users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from airlock.v1 import process_service_pb2, run_service_pb2, tool_service_pb2, workspace_service_pb2
from gateway.serving.listening import _OFTEN
from gateway.serving.prefetching_server import PrefetchingServer

_CHECK = "/grpc.health.v1.Health/Check"
_CONTRACTS = (process_service_pb2, run_service_pb2, tool_service_pb2, workspace_service_pb2)


class _Healthy(HealthServicer):  # type: ignore[misc]  # it has no stubs
    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.held.set()
        self.begun = 0

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        self.begun += 1
        await self.held.wait()
        return await super().Check(request, context)


class _Seen(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self.methods.append(handler_call_details.method)  # type: ignore[attr-defined]  # no stub
        return await continuation(handler_call_details)


@asynccontextmanager
async def _served(
    healthy: _Healthy, often: tuple[str, ...] = (_CHECK,), seen: _Seen | None = None, most: int = 1000
) -> AsyncIterator[tuple[PrefetchingServer, Any]]:
    server = PrefetchingServer(often, () if seen is None else (seen,), (), most)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_port("127.0.0.1:0", None)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield server, health_pb2_grpc.HealthStub(channel)
        finally:
            healthy.held.set()
            await server.stop(0)


def _check(stub: Any) -> Any:
    return stub.Check(health_pb2.HealthCheckRequest(), timeout=60)


async def test_calls_of_a_method_that_is_asked_for_often_are_taken_here_and_intercepted() -> None:
    seen = _Seen()
    async with _served(_Healthy(), seen=seen) as (server, stub):
        answers = await asyncio.gather(*(_check(stub) for _ in range(200)))
    assert {answer.status for answer in answers} == {health_pb2.HealthCheckResponse.SERVING}
    assert seen.methods == [_CHECK] * 200
    assert server.prefetched > 100  # a few go by grpc.aio's own loop


async def test_other_methods_are_served_all_the_same() -> None:
    async with _served(_Healthy(), often=("/grpc.health.v1.Health/Watch",)) as (server, stub):
        assert (await _check(stub)).status == health_pb2.HealthCheckResponse.SERVING
        assert server.prefetched == 0


async def test_more_than_there_may_be_at_once_are_refused() -> None:
    healthy = _Healthy()
    async with _served(healthy, most=8) as (_, stub):
        healthy.held.clear()
        calls = [_check(stub) for _ in range(64)]
        codes = asyncio.as_completed([call.code() for call in calls])
        # grpc.aio's own loop counts those that it took apart.
        for _, code in zip(range(64 - 2 * 8), codes, strict=False):
            assert await code is grpc.StatusCode.RESOURCE_EXHAUSTED
        healthy.held.set()


async def test_a_stop_lets_calls_end_and_takes_no_more() -> None:
    healthy = _Healthy()
    async with _served(healthy) as (server, stub):
        healthy.held.clear()
        call = _check(stub)
        while not healthy.begun:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.stop(60))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while True:
                await stub.Check(health_pb2.HealthCheckRequest(service="none"), timeout=0.2)
        # In the very moment of the stop grpc's core ends what it has not handed out.
        ended = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        assert refused.value.code() in ended
        healthy.held.set()
        assert (await call).status == health_pb2.HealthCheckResponse.SERVING
        await stopping


async def test_an_address_that_is_taken_is_refused() -> None:
    async with _served(_Healthy()):
        taken = PrefetchingServer((), (), (("grpc.so_reuseport", 0),), 8)
        port = taken.add_port("127.0.0.1:0", None)
        with pytest.raises(RuntimeError):
            PrefetchingServer((), (), (("grpc.so_reuseport", 0),), 8).add_port(f"127.0.0.1:{port}", None)


def test_the_methods_that_are_asked_for_often_are_there() -> None:
    known = {
        f"/{service.full_name}/{method.name}"
        for contract in _CONTRACTS
        for service in contract.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(_OFTEN) <= known
