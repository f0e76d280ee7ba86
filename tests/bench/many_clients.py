"""64 clients of 32 tenants, each tenant with a sandbox of its own: calls a second, and what limits them.

What limits is shown by who used the processors: the gateway, the clients (one process, here), and all others, which are
the sandboxes' daemons and the programs. The sum cannot be more than the machine has.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from rich.table import Table

from gateway.client import Client
from tests.bench.fleet import Fleet, cpu_s, fleet, machine_cpu_s

_TENANTS = 32
_CLIENTS = 64
_SECONDS = 10.0
_THREAD = "bench"
_COLUMNS = (
    "64 clients, 32 tenants",
    "calls/s",
    "p50 ms",
    "p99 ms",
    "gateway cpus",
    "its busiest thread",
    "clients cpus",
    "rest cpus",
)


async def tables(workers: tuple[int, ...] = (1, 2)) -> list[Table]:
    """Measure and return what `make bench` prints."""
    table = Table(*_COLUMNS, box=None, header_style="bold", title=f"execute true, {os.cpu_count()} cpus")
    for count in workers:
        options = () if count == 1 else ("--workers", str(count))
        async with fleet(_TENANTS, *options) as all_:
            table.add_row(f"{count} worker{'s' * (count > 1)}", *await _row(all_))
    return [table]


async def _row(all_: Fleet) -> list[str]:
    clients = list(all_.clients.values())
    for client in clients:
        await _call(client)
    taken_s: list[float] = []
    before = _used(all_)
    threads_before = _threads(all_)
    ends = time.perf_counter() + _SECONDS

    async def client(number: int) -> None:
        while (started := time.perf_counter()) < ends:
            await _call(clients[number % len(clients)])
            taken_s.append(time.perf_counter() - started)

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(_CLIENTS)))
    elapsed_s = time.perf_counter() - began
    gateway, ours, machine = ((now - then) / elapsed_s for now, then in zip(_used(all_), before, strict=True))
    busiest = max(now - threads_before.get(thread, 0.0) for thread, now in _threads(all_).items()) / elapsed_s
    cuts = statistics.quantiles(taken_s, n=100)
    numbers = (cuts[49] * 1000, cuts[98] * 1000)
    rest = machine - gateway - ours
    return [
        f"{len(taken_s) / elapsed_s:,.0f}",
        *(f"{number:.0f}" for number in numbers),
        *(f"{share:.2f}" for share in (gateway, busiest, ours, rest)),
    ]


async def _call(client: Client) -> None:
    result = await client.call_tool("execute", {"command": "true"}, thread=_THREAD)
    if result.exit_code != 0:
        raise RuntimeError(f"execute true: {result}")


def _used(all_: Fleet) -> tuple[float, float, float]:
    return all_.cpu_s(), cpu_s(Path("/proc/self/stat")), machine_cpu_s()


def _threads(all_: Fleet) -> dict[str, float]:
    stats = (stat for pid in all_.processes() for stat in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {str(stat): cpu_s(stat) for stat in stats}
