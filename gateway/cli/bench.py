"""`airlock bench`: measure tool calls on a running gateway, compared with `docker exec` on this machine.

`make bench` in a clone measures more, compared with more peers.
"""

import asyncio
import contextlib
import shutil
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import typer
from rich.progress import track

from gateway.cli.command import GatewayCli
from gateway.cli.printable import Rows
from gateway.cli.terminal import err

_PAGE = b"x" * 4095 + b"\n"
_WARMUP = 3
Sample = Callable[[], Awaitable[object]]


async def bench(
    cli: GatewayCli,
    *,
    calls: Annotated[int, typer.Option(min=10, max=10_000, help="Number of sequential calls of each kind.")] = 100,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Number of concurrent clients in the second part.")] = 8,
    peer_image: Annotated[str, typer.Option(help="Image of the container for `docker exec`.")] = "airlock-sandbox",
) -> None:
    """Measure tool calls, compared with `docker exec`; creates a thread named bench-... and does not delete it."""
    thread = f"bench-{uuid.uuid4()}"

    async def execute() -> None:
        await cli.airlock.call_tool("execute", {"command": "true"}, thread=thread)

    kinds: dict[str, Sample] = {
        "execute true": execute,
        "read_file 4 KiB": lambda: cli.airlock.call_tool("read_file", {"path": "page"}, thread=thread),
        "write_file 4 KiB": lambda: cli.airlock.call_tool(
            "write_file", {"path": "copy", "content": _PAGE.decode()}, thread=thread
        ),
    }
    async with _container(peer_image) as container:
        await cli.airlock.write_file(thread, "/workspace/page", _PAGE)
        if container:
            kinds["docker exec true"] = lambda: _run("docker", "exec", container, "true")
        rows = await _in_turn(kinds, calls, quiet=cli.as_json)
        calls_per_s = await _at_once(execute, clients, calls)
    cells = []
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        cells.append((row["what"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", ratio))
    document = {"rows": rows, "clients": clients, "calls_per_s": round(calls_per_s, 1)}
    said = f"execute true, {clients} concurrent clients: {calls_per_s:.0f} calls/s"
    cli.show(document, Rows(("call", "p50 ms", "p99 ms", "vs docker exec"), cells), said)


async def _in_turn(kinds: Mapping[str, Sample], calls: int, *, quiet: bool) -> list[dict[str, Any]]:
    """Return the milliseconds of each kind of call; `ratio` is its p50 divided by that of `docker exec`.

    Alternates between the kinds, so that a change in the machine's speed affects all of them equally.
    """
    taken: dict[str, list[float]] = {what: [] for what in kinds}
    rounds = range(_WARMUP + calls)
    for number in rounds if quiet else track(rounds, "measuring", console=err, transient=True):
        for what, sample in kinds.items():
            started_s = time.perf_counter()
            await sample()
            if number >= _WARMUP:
                taken[what].append((time.perf_counter() - started_s) * 1000)
    p50_ms = {what: statistics.median(times) for what, times in taken.items()}
    peer_ms = p50_ms.get("docker exec true")
    return [
        {
            "what": what,
            "p50_ms": round(p50_ms[what], 3),
            "p99_ms": round(sorted(times)[int(0.99 * (len(times) - 1))], 3),
            "ratio": None if peer_ms is None else round(p50_ms[what] / peer_ms, 4),
        }
        for what, times in taken.items()
    ]


async def _at_once(sample: Sample, clients: int, calls: int) -> float:
    """Return the calls per second of concurrent clients, which share the calls."""

    async def one() -> None:
        for _ in range(max(1, calls // clients)):
            await sample()

    started_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return max(1, calls // clients) * clients / (time.perf_counter() - started_s)


@contextlib.asynccontextmanager
async def _container(image: str) -> AsyncIterator[str]:
    """Run a container to compare with; yield "" if Docker or the image is missing."""
    if shutil.which("docker") is None:
        yield ""
        return
    name = f"airlock-bench-{uuid.uuid4().hex[:12]}"
    made = await _run(
        *("docker", "run", "--detach", "--rm", "--init", "--network=none", "--pull=never"),
        *("--label=airlock.kind=bench", "--name", name, image, "sleep", "infinity"),
    )
    if made:
        err.print(f"no comparison: docker could not run {image!r}", style="dim")
    try:
        yield "" if made else name
    finally:
        if not made:
            await _run("docker", "rm", "--force", name)


async def _run(*command: str) -> int:
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)
    return await process.wait()
