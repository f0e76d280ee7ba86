"""Callers without a credential cannot take every place of a gateway: a tenant and an operator get through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.client import Client
from gateway.serving.health import STREAMS, STREAMS_OF_A_HOST
from gateway.serving.listening import CONCURRENT_RPCS
from tests.gateway_process import Home, Served, make_home, served
from tests.raw_http2 import raw_connection

_CONNECTIONS = 30
_EACH = CONCURRENT_RPCS * 3 // 2 // _CONNECTIONS
# Grpc's core ends what comes faster than a server takes it.
_ENDS = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("locked"))


@pytest.fixture(scope="module")
def operator_key(home: Home) -> str:
    return home.make_key("")


@pytest.fixture(scope="module")
def gateway(home: Home, operator_key: str) -> Iterator[Served]:
    assert operator_key
    with served(home) as running:
        yield running


@contextlib.asynccontextmanager
async def _channels(gateway: Served) -> AsyncIterator[list[grpc.aio.Channel]]:
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(gateway.address, options=own) for _ in range(_CONNECTIONS)]
    try:
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def _both_get_through(gateway: Served, home: Home, operator_key: str) -> None:
    async with Client(gateway.address, home.key, retry=None) as client:
        assert await client.list_tools()
    async with Client(gateway.address, operator_key, retry=None) as client:
        assert [tenant async for tenant in client.tenants()]


async def test_unauthenticated_watches_of_health_lock_no_one_out(
    gateway: Served, home: Home, operator_key: str
) -> None:
    async with _channels(gateway) as channels:
        watches: list[Any] = []
        for channel in channels:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watches += [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(_EACH)]
        said = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        held = [one for one in said if isinstance(one, health_pb2.HealthCheckResponse)]
        refused = {one.code() for one in said if isinstance(one, grpc.aio.AioRpcError)}
        assert len(held) == STREAMS_OF_A_HOST < STREAMS
        assert refused <= _ENDS
        assert len(held) + sum(isinstance(one, grpc.aio.AioRpcError) for one in said) == len(watches)
        await _both_get_through(gateway, home, operator_key)
        health: Any = health_pb2_grpc.HealthStub(channels[0])
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_calls_without_a_credential_are_refused_before_their_request_is_read(
    gateway: Served, home: Home, operator_key: str
) -> None:
    async with _channels(gateway) as channels:
        # The client sends no request: a stream of requests is what any method is until the first has come.
        begun: list[Any] = [
            channel.stream_unary("/gateway.v1.ToolService/CallTool")() for channel in channels for _ in range(_EACH)
        ]
        codes = set(await asyncio.gather(*(call.code() for call in begun)))
        assert codes <= {*_ENDS, grpc.StatusCode.UNAUTHENTICATED}
        await _both_get_through(gateway, home, operator_key)


async def test_answers_of_health_that_are_never_read_lock_no_one_out(
    gateway: Served, home: Home, operator_key: str
) -> None:
    async with contextlib.AsyncExitStack() as open_:
        # Three connections from an address of their own, 700 calls each, and not a byte of window for the answers.
        peers = [await open_.enter_async_context(raw_connection(gateway.address, source="127.0.0.2")) for _ in range(3)]
        for peer in peers:
            for _ in range(700):
                peer.call("/grpc.health.v1.Health/Check")
            await peer.flush()
        # What is over the bounds is refused in headers, which need no window.
        await asyncio.gather(*(peer.wait_ended(600) for peer in peers))
        await _both_get_through(gateway, home, operator_key)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            status = (await health.Check(health_pb2.HealthCheckRequest())).status
        assert status == health_pb2.HealthCheckResponse.SERVING
