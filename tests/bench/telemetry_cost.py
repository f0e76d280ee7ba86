"""What telemetry costs a call: `execute true` through two gateways in turn, one without telemetry and one with it.

The one that tells serves metrics and sends one trace in ten to a receiver. Each pair of samples is taken one right
after the other, and which comes first changes, so that a machine whose speed drifts slows both alike. What is compared
is the median of the ratios, and the processor time of the two gateways, which a machine that does other things besides
changes less. Run it with `python -m tests.bench.telemetry_cost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.client import Client
from tests.gateway_process import make_home, served
from tests.unit.gateway.telemetry.receiver import receiver

_PAIRS = 60
_WARMUP = 5
_CALLS_PER_SAMPLE = 5
_SAMPLE_RATIO = 0.1
# What a call took without and with telemetry: its time, and the gateway's processor time, in milliseconds.
_Pair = tuple[tuple[float, float], tuple[float, float]]


@contextlib.asynccontextmanager
async def _serving(directory: Path, **telemetry: Any) -> AsyncIterator[tuple[Client, int]]:
    home = await asyncio.to_thread(make_home, directory)
    home.configure(telemetry=telemetry)
    stack = contextlib.ExitStack()
    gateway = await asyncio.to_thread(stack.enter_context, served(home))
    try:
        async with Client(gateway.address, home.key) as client:
            yield client, gateway.process.pid
    finally:
        await asyncio.to_thread(stack.close)


async def _milliseconds(gateway: tuple[Client, int]) -> tuple[float, float]:
    """Return the time of a call, and the gateway's processor time for it."""
    client, pid = gateway
    started, started_cpu_ms = time.perf_counter(), _cpu_ms(pid)
    for _ in range(_CALLS_PER_SAMPLE):
        await client.call_tool("execute", {"command": "true"}, thread="bench")
    wall_ms, cpu_ms = (time.perf_counter() - started) * 1000, _cpu_ms(pid) - started_cpu_ms
    return wall_ms / _CALLS_PER_SAMPLE, cpu_ms / _CALLS_PER_SAMPLE


def _cpu_ms(pid: int) -> float:
    """Return the processor time of all threads that a process has."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1_000_000


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        async with (
            receiver() as received,
            _serving(Path(directory) / "off") as off,
            _serving(
                Path(directory) / "on",
                otlp_endpoint=received.endpoint,
                metrics_listen="127.0.0.1:0",
                sample_ratio=_SAMPLE_RATIO,
            ) as on,
        ):
            pairs: list[_Pair] = []
            for number in range(_WARMUP + _PAIRS):
                if number % 2:
                    without, with_ = await _milliseconds(off), await _milliseconds(on)
                else:
                    with_, without = await _milliseconds(on), await _milliseconds(off)
                if number >= _WARMUP:
                    pairs.append((without, with_))
    return [_table(pairs, len(received.spans))]


def _table(pairs: list[_Pair], spans: int) -> Table:
    title = f"execute true with metrics and traces at {_SAMPLE_RATIO:g}; {spans} spans came"
    table = Table("what", "off, ms", "on, ms", "ratio", "goal", title=title, box=None, header_style="bold")
    for what, which in (("p50 of a call", 0), ("processor time of a call, p50", 1)):
        off = statistics.median(off[which] for off, _ in pairs)
        on = statistics.median(on[which] for _, on in pairs)
        ratio = statistics.median(on[which] / off[which] for off, on in pairs)
        table.add_row(what, f"{off:.3f}", f"{on:.3f}", f"{ratio:.3f}", "<= 1.05")
    return table


if __name__ == "__main__":
    for made in asyncio.run(tables()):
        Console().print(made)
