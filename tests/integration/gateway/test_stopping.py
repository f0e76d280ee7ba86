"""A graceful shutdown: health says so first, nothing new is taken, calls that are under way get their time to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.client import Client
from gateway.composition.services import SERVICES
from gateway.errors import AirlockError, Unavailable
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, Served, make_home, served

HELD = {"command": "touch /tmp/on; until test -e /tmp/go; do sleep 0.02; done; echo done"}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def _in_sandbox(home: Home, *command: str) -> int:
    """Run a program in the one sandbox, past the gateway."""
    (container,) = containers_of(home.instance)
    return subprocess.run(["docker", "exec", container, *command], check=False, capture_output=True).returncode


@asynccontextmanager
async def _held_call(home: Home, client: Client) -> AsyncIterator[asyncio.Task[object]]:
    """Have a call be under way that ends when /tmp/go is there."""
    call = asyncio.create_task(client.call_tool("execute", HELD, thread="t"))
    async with asyncio.timeout(60):
        while not containers_of(home.instance) or await asyncio.to_thread(_in_sandbox, home, "test", "-e", "/tmp/on"):
            await asyncio.sleep(0.02)
    yield call
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError, AirlockError):
        await call


async def _signalled(gateway: Served, health: health_pb2_grpc.HealthStub, number: signal.Signals) -> None:
    """Send a signal, and see all services go from SERVING to NOT_SERVING."""
    async with AsyncExitStack() as stack:
        watched = []
        for service in ("", *SERVICES):
            watch = health.Watch(health_pb2.HealthCheckRequest(service=service))
            stack.callback(watch.cancel)
            assert (await watch.read()).status == SERVING
            watched.append(watch)
        gateway.process.send_signal(number)
        async with asyncio.timeout(30):
            for watch in watched:
                assert (await watch.read()).status == NOT_SERVING


@pytest.mark.parametrize(
    "options, number",
    [
        ((), signal.SIGTERM),
        (("--workers", "2"), signal.SIGTERM),
        ((), signal.SIGHUP),
        (("--workers", "2"), signal.SIGHUP),
    ],
    ids=["alone", "workers", "alone-hangup", "workers-hangup"],
)
async def test_a_gateway_that_stops_says_so_and_lets_calls_end_but_takes_no_new_one(
    tmp_path: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.configure(drain_s=60)
    with served(home, None, *options) as gateway:
        async with (
            Client(gateway.address, home.key) as client,
            Client(gateway.address, home.key, retry=None) as late,
            grpc.aio.insecure_channel(gateway.address) as channel,
            _held_call(home, client) as call,
        ):
            await late.list_tools()
            await _signalled(gateway, health_pb2_grpc.HealthStub(channel), number)
            # Health says so first; what comes in that moment is still taken, and has its answer.
            with pytest.raises(Unavailable):
                async with asyncio.timeout(30):
                    while True:
                        await late.call_tool("execute", {"command": "true"}, thread="t")
            assert gateway.process.poll() is None
            assert not call.done()
            assert await asyncio.to_thread(_in_sandbox, home, "touch", "/tmp/go") == 0
            async with asyncio.timeout(30):
                result = await call
            assert (result.outcome, result.content) == ("exited", "done\n")
        assert await asyncio.to_thread(gateway.process.wait, 60) == 0
        assert not (home.config.parent / "ready").exists()
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_a_call_that_takes_longer_than_the_drain_is_ended_with_its_processes(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.configure(drain_s=0.5)
    with served(home) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client, _held_call(home, client) as call:
            gateway.process.send_signal(signal.SIGTERM)
            with pytest.raises(Unavailable):
                await call
        assert await asyncio.to_thread(gateway.process.wait, 60) == 0
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []
