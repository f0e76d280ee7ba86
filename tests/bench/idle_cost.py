"""What an idle gateway costs, and one call from a shell: `python -m tests.bench.idle_cost`, with a Docker engine.

serve      from the exec of `airlock serve` until it is ready, and how much memory is resident (VmRSS) then
tool call  `airlock tool call execute` as a process of its own, in a sandbox that is running

The processor time of each hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.fleet import cpu_s
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
            calls = [_call_ms(env) for _ in range(_CALLS)]
    ready_s, used_s, resident_mib = (statistics.median(values) for values in zip(*starts, strict=True))
    call_ms, call_used_ms = (statistics.median(values) for values in zip(*calls, strict=True))
    table = Table("from nothing", "median", "processor", "goal", box=None, header_style="bold")
    table.add_row("airlock serve until ready, s", f"{ready_s:.2f}", f"{used_s:.2f}", "< 1.5")
    table.add_row("its memory then, MiB", f"{resident_mib:.0f}", "", "< 90")
    table.add_row("airlock tool call, ms", f"{call_ms:.0f}", f"{call_used_ms:.0f}", "< 400")
    return table


def _start(home: Home) -> tuple[float, float, float]:
    """Return after how many seconds, and of processor time, a gateway was ready, and how many MiB were resident."""
    started = time.perf_counter()
    with served(home) as gateway:
        ready_s = time.perf_counter() - started
        used_s = cpu_s(Path(f"/proc/{gateway.process.pid}/stat"))
        status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
        (resident_kib,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return ready_s, used_s, resident_kib / _KIB_PER_MIB


def _call_ms(env: dict[str, str]) -> tuple[float, float]:
    """Return how long a call took, and its processor time."""
    started, used_s = time.perf_counter(), _children_s()
    airlock_process(*_CALL, env=env)
    return (time.perf_counter() - started) * 1000, (_children_s() - used_s) * 1000


def _children_s() -> float:
    """Return the processor time of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    Console(width=110).print(_table())
