"""A call through the whole gateway beside its peers, in one run, as ratios.

    execute true          client -> gateway (policy, journal) -> daemon -> sh -c true         beside `docker exec true`
    read_file of 4 KiB    the same way                                                       beside a bare grpc.aio echo

The samples of all rows are taken in turn, so that a machine whose speed drifts slows all of them alike.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from rich.table import Table

from gateway.client import Client
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served

_SAMPLES = 60
_WARMUP = 5
_CALLS_PER_SAMPLE = 5
_PAGE = b"x" * 4095 + b"\n"

Sample = Callable[[], Awaitable[None]]


async def _milliseconds(sample: Sample, repeat: int) -> float:
    started = time.perf_counter()
    for _ in range(repeat):
        await sample()
    return (time.perf_counter() - started) * 1000 / repeat


async def _measure(rows: dict[str, tuple[Sample, int]]) -> dict[str, float]:
    """Return each row's median in milliseconds; a row is what to call and how often per sample."""
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for n in range(_WARMUP + _SAMPLES):
        for name, (sample, repeat) in rows.items():
            value = await _milliseconds(sample, repeat)
            if n >= _WARMUP:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


async def _echo_server() -> tuple[grpc.aio.Server, int]:
    async def echo(request: bytes, context: object) -> bytes:
        del context
        return request

    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def _serve_echo() -> None:
    """Serve the peer in a process of its own, as the gateway is one: `python -m tests.bench.gateway_calls echo`."""

    async def serve() -> None:
        server, port = await _echo_server()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())


async def _docker_exec(container: str) -> None:
    process = await asyncio.create_subprocess_exec("docker", "exec", container, "true")
    if await process.wait():
        raise RuntimeError("docker exec failed")


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    echo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.gateway_calls", "echo", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert echo.stdout is not None
        port = int(await echo.stdout.readline())
        with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
            home = make_home(Path(directory) / "home")
            with served(home) as gateway:
                async with (
                    Client(gateway.address, home.key) as airlock,
                    grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
                ):
                    await airlock.write_file("bench", "/workspace/page", _PAGE)
                    (container,) = containers_of(home.instance)
                    call_echo = channel.unary_unary("/bench.Echo/Echo")

                    async def execute() -> None:
                        result = await airlock.call_tool("execute", {"command": "true"}, thread="bench")
                        assert result.exit_code == 0, result

                    async def read() -> None:
                        result = await airlock.call_tool("read_file", {"path": "page"}, thread="bench")
                        assert len(result.content_bytes) == len(_PAGE), result

                    async def echo_page() -> None:
                        assert len(await call_echo(_PAGE)) == len(_PAGE)

                    async def docker_exec() -> None:
                        await _docker_exec(container)

                    p50 = await _measure(
                        {
                            "docker exec true": (docker_exec, 1),
                            "airlock execute true": (execute, _CALLS_PER_SAMPLE),
                            "bare grpc.aio echo, 4 KiB": (echo_page, _CALLS_PER_SAMPLE),
                            "airlock read_file, 4 KiB": (read, _CALLS_PER_SAMPLE),
                        }
                    )
                    return [_table(p50)]
    finally:
        echo.terminate()
        await echo.wait()


def _table(p50: dict[str, float]) -> Table:
    table = Table("what", "p50 ms", "beside", "ratio", "goal", box=None, header_style="bold")
    rows = (
        ("airlock execute true", "docker exec true", "<= 0.05"),
        ("airlock execute true", "bare grpc.aio echo, 4 KiB", ""),
        ("airlock read_file, 4 KiB", "bare grpc.aio echo, 4 KiB", "<= 2.5"),
        ("airlock read_file, 4 KiB", "docker exec true", ""),
    )
    for what, peer, goal in rows:
        table.add_row(what, f"{p50[what]:.2f}", f"{peer} ({p50[peer]:.2f})", f"{p50[what] / p50[peer]:.3f}", goal)
    return table


if __name__ == "__main__":
    if sys.argv[1:] != ["echo"]:
        sys.exit("`make bench` measures; this module alone serves the peer: python -m tests.bench.gateway_calls echo")
    _serve_echo()
