"""The socket by which grpc wakes the loop is empty after each turn, however much happened in it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any, cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from gateway.serving.grpc_wakeups import take_wakeups_as_they_come

_CALLS = 64


async def _left_of_a_late_turn() -> int:
    """Return how many bytes lie in grpc's socket just after its reader was run in a turn that came late."""
    loop = asyncio.get_running_loop()
    sources: list[socket.socket] = []
    add_reader: Any = loop.add_reader

    def add(source: Any, *args: Any) -> None:
        if isinstance(source, socket.socket):
            sources.append(source)
        add_reader(source, *args)

    cast(Any, loop).add_reader = add
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        calls = [stub.Check(health_pb2.HealthCheckRequest(), timeout=20) for _ in range(_CALLS)]
        await asyncio.sleep(0.01)
        time.sleep(0.3)  # a turn in which much happens at the other end
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (source,) = sources
        left = 0
        with contextlib.suppress(BlockingIOError):
            left = len(source.recv(65_536, socket.MSG_PEEK))
        await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(0)
    return left


def test_bytes_are_not_left_for_turns_to_come() -> None:
    async def main() -> int:
        take_wakeups_as_they_come(asyncio.get_running_loop())
        return await _left_of_a_late_turn()

    assert asyncio.run(main()) == 0
