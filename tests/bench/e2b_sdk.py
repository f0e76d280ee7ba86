"""E2B's SDK beside the same calls by gRPC: `python -m tests.bench.e2b_sdk`, with a Docker engine.

command  `commands.run("true")` of AsyncSandbox, beside run_program of the same words
file     `files.write` and `files.read` of 4 KiB, beside write_file and read_file
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from e2b import AsyncSandbox
from rich.console import Console
from rich.table import Table

from gateway.client import Client
from tests.gateway_process import make_home, served

_CALLS, _WARMING = 200, 20
_DATA = b"x" * 4096
Call = Callable[[], Awaitable[object]]


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        home = make_home(Path(directory) / "home")
        ready = home.config.parent / "http-ready"
        with served(home, None, "--http", "127.0.0.1:0", "--http-ready-file", str(ready)) as gateway:
            url = f"http://{ready.read_text(encoding='utf-8')}/e2b"
            async with Client(gateway.address, home.key) as client:
                return [await _table(url, home.key, client)]


async def _table(url: str, key: str, client: Client) -> Table:
    sandbox = await AsyncSandbox.create(api_url=url, sandbox_url=url, api_key=key, timeout=3600)
    thread = f"e2b-{sandbox.sandbox_id}"
    await sandbox.files.write("read", _DATA)
    pairs: tuple[tuple[str, Call, Call], ...] = (
        (
            'commands.run("true")',
            lambda: sandbox.commands.run("true"),
            lambda: client.run_program(["/bin/bash", "-c", "true"], thread=thread),
        ),
        (
            "files.write, 4 KiB",
            lambda: sandbox.files.write("written", _DATA),
            lambda: client.write_file(thread, "written", _DATA),
        ),
        ("files.read, 4 KiB", lambda: sandbox.files.read("read", "bytes"), lambda: client.read_file(thread, "read")),
    )
    table = Table("call, p50", "e2b, ms", "gRPC, ms", "ratio", "goal", box=None, header_style="bold")
    try:
        for name, by_sdk, by_grpc in pairs:
            # By turns, so that a busy machine is busy for both.
            times = [(await _ms(by_sdk), await _ms(by_grpc)) for _ in range(_CALLS + _WARMING)][_WARMING:]
            sdk_ms, grpc_ms = (statistics.median(one) for one in zip(*times, strict=True))
            goal = "<= 2" if name.startswith("commands") else ""
            table.add_row(name, f"{sdk_ms:.1f}", f"{grpc_ms:.1f}", f"{sdk_ms / grpc_ms:.2f}", goal)
    finally:
        await sandbox.kill()
    return table


async def _ms(call: Call) -> float:
    started = time.perf_counter()
    await call()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    for one in asyncio.run(tables()):
        Console(width=110).print(one)
