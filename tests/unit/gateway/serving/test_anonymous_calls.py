"""What needs no credential is bounded: streams of health by number and time, calls by the time their request takes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.errors import Overloaded
from gateway.serving.edge import FirstMessageTimeout
from gateway.serving.health import STREAMS, STREAMS_OF_A_HOST, BoundedHealth
from gateway.serving.limits import AnonymousConnections


@contextlib.asynccontextmanager
async def _served(watch_s: float = 60.0, timeout_s: float = 60.0) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=(FirstMessageTimeout(timeout_s),))
    health_pb2_grpc.add_HealthServicer_to_server(BoundedHealth(watch_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


async def test_a_watch_ends_by_itself_and_another_can_begin() -> None:
    async with _served(watch_s=0.01) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for _ in range(STREAMS_OF_A_HOST + 1):
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            assert await watch.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_call_whose_request_does_not_come_ends_and_says_so(method: str) -> None:
    async with _served(timeout_s=0.01) as channel:
        call: Any = channel.stream_unary(f"/grpc.health.v1.Health/{method}")()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not arrive" in await call.details()
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_call_that_ends_without_a_request_is_reported() -> None:
    async with _served() as channel:
        call: Any = channel.stream_unary("/grpc.health.v1.Health/Check")()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_one_host_has_a_part_of_the_streams_and_all_hosts_together_have_so_many() -> None:
    streams = AnonymousConnections(of_connection=STREAMS_OF_A_HOST, of_host=STREAMS_OF_A_HOST, in_all=STREAMS)
    with contextlib.ExitStack() as opened:
        for port in range(STREAMS_OF_A_HOST):
            opened.enter_context(streams.one(f"ipv4:10.0.0.1:{port}"))
        with pytest.raises(Overloaded):
            streams.one("ipv4:10.0.0.1:999")
        for host in range(STREAMS - STREAMS_OF_A_HOST):
            opened.enter_context(streams.one(f"ipv4:10.0.1.{host}:1"))
        with pytest.raises(Overloaded):
            streams.one("ipv4:10.0.2.1:1")
    with streams.one("ipv4:10.0.0.1:1"):
        pass
