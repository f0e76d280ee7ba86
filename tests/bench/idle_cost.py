"""What an idle gateway costs, and one call from a shell: `python -m tests.bench.idle_cost`, with a Docker engine.

serve      from the exec of `airlock serve` until it is ready, and how much memory is resident (VmRSS) then
tool call  `airlock tool call execute` as a process of its own, in a sandbox that is running
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.gateway_process import Home, airlock_process, make_home, served

_STARTS = 5
_CALLS = 15
_KIB_PER_MIB = 1024
_CALL = ("tool", "call", "execute", '{"command": "true"}', "--check")


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    return [await asyncio.to_thread(_table)]


def _table() -> Table:
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        home = make_home(Path(directory) / "home")
        starts = [_start(home) for _ in range(_STARTS)]
        with served(home) as gateway:
            env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
            _call_ms(env)  # makes the sandbox
            calls_ms = [_call_ms(env) for _ in range(_CALLS)]
    ready_s, resident_mib = (statistics.median(values) for values in zip(*starts, strict=True))
    table = Table("from nothing", "median", "goal", box=None, header_style="bold")
    table.add_row("airlock serve until ready, s", f"{ready_s:.2f}", "< 1.5")
    table.add_row("its memory then, MiB", f"{resident_mib:.0f}", "< 90")
    table.add_row("airlock tool call, ms", f"{statistics.median(calls_ms):.0f}", "< 400")
    return table


def _start(home: Home) -> tuple[float, float]:
    """Return after how many seconds a gateway was ready, and how many MiB of it were resident."""
    started = time.perf_counter()
    with served(home) as gateway:
        ready_s = time.perf_counter() - started
        status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
        (resident_kib,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return ready_s, resident_kib / _KIB_PER_MIB


def _call_ms(env: dict[str, str]) -> float:
    started = time.perf_counter()
    airlock_process(*_CALL, env=env)
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    Console(width=110).print(_table())
