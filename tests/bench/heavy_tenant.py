"""What one tenant's heavy work, many calls, output full of secrets and long lines, costs another tenant's light calls.

The goal is a p99 of at most 2.5 times that of the quiet tenant alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from rich.table import Table

from gateway.client import Client
from gateway.errors import AirlockError
from tests.bench.fleet import Fleet, fleet

_SECONDS = 5.0
_CALLS = 64
_STREAMS = 4
_CALLERS = 32
_LINE_CHARS = 32_000
_OUTPUT_BYTES = 1024**3
_SECRETS = "yes '://u:passwd@'"
_PLAIN = "yes '... .........'"
Busy = Callable[[Client, int], Awaitable[object]]


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints."""
    columns = ("a quiet tenant's read_file", "calls", "p50 ms", "p99 ms", "p99 / alone")
    table = Table(*columns, box=None, header_style="bold", title="Beside one busy tenant")
    async with fleet(2) as all_:
        quiet = all_.clients["t0"]
        await quiet.call_tool("write_file", {"path": "a", "content": "x" * 4096})
        alone = await _latencies_s(quiet)
        rows = [("alone", alone)]
        for name in _WORK:
            async with _under_way(all_, name):
                rows.append((f"beside {name}", await _latencies_s(quiet)))
        for name, taken_s in rows:
            p50, p99 = (_percentile(taken_s, at) * 1000 for at in (0.5, 0.99))
            ratio = p99 / (_percentile(alone, 0.99) * 1000)
            table.add_row(name, str(len(taken_s)), f"{p50:.1f}", f"{p99:.1f}", f"{ratio:.1f}")
    return [table]


def _stream(command: str) -> Busy:
    async def work(client: Client, number: int) -> None:
        await client.run_program(
            ["sh", "-c", command], thread="busy", output_limit_bytes=_OUTPUT_BYTES, on_output=lambda *_: None
        )
        del number

    return work


async def _call(client: Client, number: int) -> None:
    del number
    await client.call_tool("execute", {"command": "true"}, thread="busy")


async def _long_line(client: Client, number: int) -> None:
    line = f"echo {number} {time.perf_counter()} " + "a " * (_LINE_CHARS // 2)
    await client.call_tool("execute", {"command": line}, thread="busy")


_WORK: dict[str, tuple[Busy, int]] = {
    f"{_CALLS} calls of `true`": (_call, _CALLS),
    f"{_STREAMS} streams of plain text": (_stream(_PLAIN), _STREAMS),
    f"{_STREAMS} streams of secrets": (_stream(_SECRETS), _STREAMS),
    f"{4 * _STREAMS} streams of secrets": (_stream(_SECRETS), 4 * _STREAMS),
    f"{_CALLERS} callers with lines of 32 KiB": (_long_line, _CALLERS),
}


@contextlib.asynccontextmanager
async def _under_way(fleet_: Fleet, name: str) -> AsyncIterator[None]:
    """Have a process of the busy tenant do some work until the block ends; its client delays only itself."""
    busy = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, fleet_.gateway.address, fleet_.keys["t1"], name
    )
    try:
        await asyncio.sleep(2)  # until all are at it
        yield
    finally:
        busy.kill()
        await busy.wait()
        await asyncio.sleep(1)  # until the gateway has ended what it left


async def _work_forever(address: str, key: str, name: str) -> None:
    work, count = _WORK[name]

    async def again(client: Client, number: int) -> None:
        while True:
            with contextlib.suppress(AirlockError):
                await work(client, number)

    async with Client(address, key) as client:
        await asyncio.gather(*(again(client, number) for number in range(count)))


async def _latencies_s(client: Client) -> Sequence[float]:
    taken_s: list[float] = []
    ends = time.perf_counter() + _SECONDS
    while (started := time.perf_counter()) < ends:
        await client.call_tool("read_file", {"path": "a"})
        taken_s.append(time.perf_counter() - started)
        await asyncio.sleep(0.01)
    return taken_s


def _percentile(taken_s: Sequence[float], at: float) -> float:
    ordered = sorted(taken_s)
    return ordered[min(len(ordered) - 1, math.ceil(at * len(ordered)) - 1)]


if __name__ == "__main__":
    asyncio.run(_work_forever(*sys.argv[1:]))
