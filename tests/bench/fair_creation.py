"""What one tenant's burst of sandboxes costs another that wants one, with turns (fair_creation.py) and without."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.engine import Creator
from sandbox.engines.fair_creation import FairCreation
from sandbox.sandbox import SandboxLimits, SandboxSpec

_BURST = 50
_SAMPLES = 10
_LIMITS = SandboxLimits(memory_bytes=128 * 1024 * 1024, workspace_bytes=64 * 1024 * 1024, pids=64)


@dataclass(frozen=True)
class Waited:
    """How long a tenant waited for each sandbox, alone and during another's burst, and what that burst took in all."""

    alone_s: Sequence[float]
    beside_s: Sequence[float]
    burst_s: float


async def tables() -> list[Table]:
    """Return the table."""
    title = f"A sandbox for one tenant while another asks for {_BURST} at once"
    table = Table(title=title, title_justify="left")
    for name in ("", "alone, p50 ms", "beside, p50 ms", "beside, worst ms", "worst / alone", "the burst, s"):
        table.add_column(name, justify="left" if not name else "right")
    ways: tuple[tuple[str, Callable[[Creator], Creator]], ...] = (
        ("in turns", FairCreation),
        ("all at once", lambda engine: engine),
    )
    for name, around in ways:
        waited = await measure(around)
        alone_s, beside_s, worst_s = middle(waited.alone_s), middle(waited.beside_s), max(waited.beside_s)
        figures = (f"{alone_s * 1000:.0f}", f"{beside_s * 1000:.0f}", f"{worst_s * 1000:.0f}")
        table.add_row(name, *figures, f"{worst_s / alone_s:.1f}", f"{waited.burst_s:.1f}")
    return [table]


async def measure(around: Callable[[Creator], Creator], *, burst: int = _BURST, samples: int = _SAMPLES) -> Waited:
    """Measure with a creator around a Docker engine, which is gone with all that it made at the end."""
    async with _docker() as docker:
        creator = around(docker)
        alone_s = [await _made(docker, creator, "quiet", f"alone-{number}") for number in range(samples)]
        began_s = time.monotonic()
        crowd = [asyncio.create_task(_made(docker, creator, "burst", str(number))) for number in range(burst)]
        await asyncio.sleep(0)
        beside_s: list[float] = []
        while len(beside_s) < samples and not all(task.done() for task in crowd):
            beside_s.append(await _made(docker, creator, "quiet", f"beside-{len(beside_s)}"))
        await asyncio.gather(*crowd)
        return Waited(alone_s, beside_s, time.monotonic() - began_s)


async def _made(docker: DockerEngine, creator: Creator, tenant: str, thread: str) -> float:
    """Make a sandbox and have a command done; return how long that took, its removal aside."""
    began_s = time.monotonic()
    sandbox = await creator.create(SandboxSpec(tenant, thread, "airlock-sandbox", limits=_LIMITS))
    await sandbox.shell.execute("true", timeout_s=60, call_id="c", limit_chars=100, head_chars=10, tail_chars=10)
    took_s = time.monotonic() - began_s
    await docker.remove(sandbox.id)
    return took_s


@contextlib.asynccontextmanager
async def _docker() -> AsyncIterator[DockerEngine]:
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        made = DockerEngine(instance=f"bench-{secrets.token_hex(4)}", channel_root=Path(directory) / "channels")
        try:
            await made.prepare()
            yield made
        finally:
            for sandbox_id in await made.owned():
                await made.remove(sandbox_id)
            await made.remove_workspaces()
            await made.close()


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]
