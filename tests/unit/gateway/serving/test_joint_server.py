"""Several servers at one address are one to whoever uses them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from gateway.serving.joint_server import JointServer

_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class _Counting(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    def __init__(self, seen: Counter[int], number: int) -> None:
        self._seen, self._number = seen, number

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self._seen[self._number] += 1
        return await continuation(handler_call_details)


@asynccontextmanager
async def _served(seen: Counter[int], servers: int) -> AsyncIterator[tuple[JointServer, str]]:
    joint = JointServer(
        [
            grpc.aio.server(interceptors=(_Counting(seen, number),), options=(("grpc.so_reuseport", 1),))
            for number in range(servers)
        ]
    )
    healthy = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, joint)
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    port = joint.add_port("127.0.0.1:0", None)
    await joint.start()
    try:
        yield joint, f"127.0.0.1:{port}"
    finally:
        await joint.stop(0)


async def _asked(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=_OWN_CONNECTION) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_each_connection_is_served_and_more_than_one_server_has_some() -> None:
    seen: Counter[int] = Counter()
    async with _served(seen, 4) as (_, address):
        await asyncio.gather(*(_asked(address) for _ in range(32)))
    assert seen.total() == 32
    assert len(seen) > 1


async def test_once_stopped_nothing_is_taken_at_any_of_them() -> None:
    async with _served(Counter(), 4) as (joint, address):
        await _asked(address)
        await joint.stop(0)
        for _ in range(8):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await _asked(address)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_address_that_is_taken_is_refused() -> None:
    async with _served(Counter(), 1) as (_, address):
        with pytest.raises(RuntimeError):
            JointServer([grpc.aio.server(options=(("grpc.so_reuseport", 0),))]).add_port(address, None)
