"""How soon a stopped sandbox is back: `python -m tests.bench.sandbox_resume`, with a Docker engine.

    resumed        from asking for a sandbox that is stopped until it has answered, its walls verified anew
    and a command  the same, with its first command done: `true` in a shell
    start          `container.start()` of the docker package, of a stopped container of the same image that sleeps, with
                   a network as Docker gives it; the command line's `docker start` takes some 20 ms more
    same, started  `container.start()` of the sandbox's own container: what is left is the daemon's and ours

They are measured in turns, each in the same container again and again. Stopping is not in the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import SandboxLimits, SandboxSpec

_IMAGE = "airlock-sandbox"
_INSTANCE = f"bench-resume-{secrets.token_hex(3)}"
_LIMITS = SandboxLimits(memory_bytes=256 * 1024 * 1024, workspace_bytes=64 * 1024 * 1024, pids=64)
_SPEC = SandboxSpec("bench", "t", _IMAGE, limits=_LIMITS)
_SAMPLES, _WARMUP = 25, 3


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[DockerEngine]:
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        engine = DockerEngine(instance=_INSTANCE, channel_root=Path(directory))
        try:
            yield engine
        finally:
            for sandbox_id in await engine.owned():
                await engine.remove(sandbox_id)
            await engine.remove_workspaces()
            await engine.close()


@contextlib.contextmanager
def _plain(client: Any) -> Iterator[Any]:
    """Make a container that sleeps, of the same image."""
    labels = {"airlock.instance": _INSTANCE, "airlock.kind": "bench"}
    container = client.containers.create(_IMAGE, ["sleep", "infinity"], labels=labels)
    try:
        yield container
    finally:
        container.remove(force=True)


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    started_s = time.perf_counter()
    await work()
    return time.perf_counter() - started_s


class _Rows:
    """What is measured, each once in a turn."""

    def __init__(self, engine: DockerEngine, client: Any, plain: Any) -> None:
        self._engine = engine
        self._client = client
        self._plain = plain

    async def resumed(self) -> float:
        """Resume the sandbox."""
        took_s = await _timed(lambda: self._engine.create(_SPEC))
        await self._engine.stop("bench", "t")
        return took_s

    async def with_command(self) -> float:
        """Resume the sandbox and run a command in it."""

        async def work() -> None:
            sandbox = await self._engine.create(_SPEC)
            done = await sandbox.shell.execute(
                "true", timeout_s=60, call_id="c1", limit_chars=80_000, head_chars=2_000, tail_chars=2_000
            )
            if done.exit_code != 0:
                raise RuntimeError(f"true did not end well: {done}")

        took_s = await _timed(work)
        await self._engine.stop("bench", "t")
        return took_s

    async def plain(self) -> float:
        """Start a container that sleeps."""
        took_s = await _timed(lambda: asyncio.to_thread(self._plain.start))
        await asyncio.to_thread(self._plain.stop, timeout=0)
        return took_s

    async def same(self) -> float:
        """Start the sandbox's container."""
        labels = [f"airlock.instance={_INSTANCE}", "airlock.kind=sandbox"]
        (sandbox,) = self._client.containers.list(all=True, filters={"label": labels})
        took_s = await _timed(lambda: asyncio.to_thread(sandbox.start))
        await asyncio.to_thread(sandbox.stop, timeout=0)
        return took_s


async def measured() -> dict[str, Sequence[float]]:
    """Return the seconds of each row."""
    client: Any = docker.from_env()
    taken: dict[str, list[float]] = {}
    try:
        with _plain(client) as plain:
            async with _engine() as engine:
                await engine.create(_SPEC)
                await engine.stop("bench", "t")
                rows = _Rows(engine, client, plain)
                for n in range(_WARMUP + _SAMPLES):
                    for name, row in {
                        "resumed": rows.resumed,
                        "and a command": rows.with_command,
                        "start": rows.plain,
                        "same, started": rows.same,
                    }.items():
                        took_s = await row()
                        if n >= _WARMUP:
                            taken.setdefault(name, []).append(took_s)
    finally:
        client.close()
    return taken


async def tables() -> Sequence[Table]:
    """Return the table of this module."""
    taken = await measured()
    start_s = statistics.median(taken["start"])
    table = Table("what", "p50", "p95", "x start", title="a stopped sandbox is started again")
    for name, times_s in taken.items():
        p50_s = statistics.median(times_s)
        pairs = statistics.median(one / other for one, other in zip(times_s, taken["start"], strict=True))
        p95_s = statistics.quantiles(times_s, n=20)[-1]
        table.add_row(name, f"{p50_s * 1000:.0f} ms", f"{p95_s * 1000:.0f} ms", f"{p50_s / start_s:.2f} ({pairs:.2f})")
    table.caption = "in brackets the median of the ratios of each turn; goal: resumed at 1.5"
    return [table]


if __name__ == "__main__":
    for made in asyncio.run(tables()):
        Console(width=110).print(made)
