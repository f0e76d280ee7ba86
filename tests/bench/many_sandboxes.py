"""200 live sandboxes of 50 tenants: `python -m tests.bench.many_sandboxes`, with a Docker engine and some 3 GiB free.

Each of them answers a call through a gateway, `true` in a shell, in an order of its own in each round: eight clients at
once, and then all of them at once. What counts is that none fails and how far the slowest is from the middle. They are
made first, and gone afterwards; AIRLOCK_BENCH_SANDBOXES makes fewer of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from gateway.client import Client
from gateway.errors import Overloaded
from tests.bench.fleet import Fleet, fleet

_SANDBOXES = int(os.environ.get("AIRLOCK_BENCH_SANDBOXES", "200"))
_EACH = 4
_TENANTS = max(1, _SANDBOXES // _EACH)
_ROUNDS = 5
_AT_ONCE = 8
_MIB = 1024 * 1024


@dataclass(frozen=True)
class _Sandbox:
    client: Client
    thread: str

    async def call(self) -> None:
        """Have it answer."""
        done = await self.client.call_tool("execute", {"command": "true", "timeout_s": 120}, thread=self.thread)
        if done.outcome != "exited" or done.exit_code != 0:
            raise RuntimeError(f"a call failed: {done.outcome} {done.content}")

    async def remove(self) -> None:
        """Have it gone, with its files."""
        await self.client.delete_sandbox(self.thread)


_Act: TypeAlias = Callable[[_Sandbox], Awaitable[None]]


def _patiently(act: _Act) -> _Act:
    """Return what is done again whenever the gateway has no place for it; its times tell nothing."""

    async def done(sandbox: _Sandbox) -> None:
        while True:
            try:
                return await act(sandbox)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s or 1.0)

    return done


async def _each(sandboxes: Sequence[_Sandbox], act: _Act, at_once: int) -> list[float]:
    """Return the seconds of each."""
    places = asyncio.Semaphore(at_once)

    async def one(sandbox: _Sandbox) -> float:
        async with places:
            started_s = time.perf_counter()
            await act(sandbox)
            return time.perf_counter() - started_s

    return await asyncio.gather(*(one(sandbox) for sandbox in sandboxes))


def _row(name: str, times_s: Sequence[float]) -> tuple[str, ...]:
    p50_s, p99_s = statistics.median(times_s), statistics.quantiles(times_s, n=100)[-1]
    reported = (f"{seconds * 1000:.1f} ms" for seconds in (p50_s, p99_s, max(times_s)))
    return name, *reported, f"{p99_s / p50_s:.1f}"


def _remove_all(made: Fleet) -> None:
    """Leave nothing where the gateway could not."""
    labelled = f"label=airlock.instance={made.home.instance}"
    left = subprocess.run(["docker", "ps", "-aq", "--filter", labelled], capture_output=True, check=True, text=True)
    for id_ in left.stdout.split():
        subprocess.run(["docker", "rm", "-f", "-v", id_], capture_output=True, check=False)
    listed = ["docker", "volume", "ls", "-q", "--filter", labelled]
    files = subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split()
    if files:
        subprocess.run(["docker", "volume", "rm", *files], capture_output=True, check=False)


async def tables() -> Sequence[Table]:
    """Return the table of this module."""
    limits = {"max_live": _SANDBOXES + 8, "max_live_per_tenant": _EACH + 1, "idle_timeout_s": 3600.0}
    order = random.Random(7)
    table = Table("what", "p50", "p99", "longest", "p99 / p50", title=f"{_SANDBOXES} sandboxes of {_TENANTS} tenants")
    async with fleet(_TENANTS, sandbox=limits, at_end=_remove_all) as made:
        sandboxes = [
            _Sandbox(client, f"thread{number}") for client in made.clients.values() for number in range(_EACH)
        ][:_SANDBOXES]
        try:
            table.add_row(
                *_row("made, with its first call, 4 at once", await _each(sandboxes, _patiently(_Sandbox.call), 4))
            )
            before_s = made.cpu_s()
            for at_once in (_AT_ONCE, len(sandboxes)):
                times_s: list[float] = []
                for _ in range(_ROUNDS):
                    order.shuffle(sandboxes)
                    times_s += await _each(sandboxes, _Sandbox.call, at_once)
                table.add_row(*_row(f"a call to each, {at_once} at once", times_s))
            used_s, calls = made.cpu_s() - before_s, 2 * _ROUNDS * len(sandboxes)
            resident = made.rss_bytes() / _MIB
        finally:
            await _each(sandboxes, _patiently(_Sandbox.remove), 4)
    table.caption = f"gateway: {resident:.0f} MiB, {used_s / calls * 1000:.1f} ms of processor a call; goal: 10"
    return [table]


if __name__ == "__main__":
    for shown in asyncio.run(tables()):
        Console(width=110).print(shown)
