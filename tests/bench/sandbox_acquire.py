"""How soon a thread has its sandbox: `python -m tests.bench.sandbox_acquire`, with a Docker engine.

    warm     from asking for a sandbox to the end of its first command, with one ready in the pool
    steady   the same, a new thread every quarter of a second, while the pool makes what lacks in the background, as a
             gateway's does: with the time it takes to make one, and with those that had to wait for that
    burst    the same, fifty threads of fifty tenants at once, with fifty ready
    cold     the same without a pool, in turns with `containers.run(detach=True)` and `exec_run` of the docker package:
             a container of the same image and size, without its walls, its own user ids, daemon and workspace

The command is `true` in a shell. What is asked is a SandboxKeeper, as a gateway's calls ask it.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import docker
from rich.console import Console
from rich.table import Table

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import SandboxLimits, SandboxSpec
from tests.sandbox_keeper import make_keeper

_IMAGE = "airlock-sandbox"
_INSTANCE = "bench-acquire"
_LIMITS = SandboxLimits(memory_bytes=256 * 1024 * 1024, workspace_bytes=64 * 1024 * 1024, pids=64)
_WARM = 40
_BURST = 50
_COLD = 25
_STEADY = 40
_EVERY_S = 0.25
_POOL_LIMIT = 8
_WARMUP = 3


def _spec(tenant: str, thread: str) -> SandboxSpec:
    return SandboxSpec(tenant, thread, _IMAGE, limits=_LIMITS)


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[DockerEngine]:
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        engine = DockerEngine(instance=_INSTANCE, channel_root=Path(directory))
        try:
            await engine.reconcile()
            await engine.prepare()
            yield engine
        finally:
            await engine.remove_workspaces()
            await engine.close()


@contextlib.asynccontextmanager
async def _keeping(
    engine: DockerEngine, ready: int, *, limit: int | None = None
) -> AsyncIterator[tuple[SandboxKeeper, SandboxPool]]:
    """Have a keeper around a pool that makes so many when its tend() is called, and nothing more before it begins."""
    pool = SandboxPool(engine, engine, engine.pool, limit=ready if limit is None else limit)
    pool.keep(PoolKind.of(_spec("", "")), ready)
    keeper = make_keeper(engine, creator=pool, max_live=4 * _BURST, max_live_per_tenant=4 * _BURST)
    try:
        yield keeper, pool
    finally:
        await keeper.close()
        await pool.drain()


async def _acquired(keeper: SandboxKeeper, spec: SandboxSpec) -> float:
    """Return how many seconds a thread waits for its sandbox and the end of its first command."""
    began_s = time.perf_counter()
    async with keeper.acquire(spec) as sandbox:
        done = await sandbox.shell.execute(
            "true", timeout_s=20, call_id="c1", limit_chars=1000, head_chars=100, tail_chars=100
        )
        took_s = time.perf_counter() - began_s
    assert done.exit_code == 0
    return took_s


async def _warm() -> list[float]:
    took = []
    async with _engine() as engine, _keeping(engine, 1) as (keeper, pool):
        for number in range(_WARMUP + _WARM):
            await pool.tend()
            took.append(await _acquired(keeper, _spec("tenant", str(number))))
        assert pool.claims == {"hit": _WARMUP + _WARM}
    return took[_WARMUP:]


async def _steady(tenants: int = 4) -> tuple[list[float], int]:
    """Return what each waited, and how many had one that was ready."""
    async with _engine() as engine, _keeping(engine, 1, limit=_POOL_LIMIT) as (keeper, pool):
        await pool.tend()
        pool.begin()
        asked = []
        for number in range(_STEADY):
            spec = _spec(f"tenant-{number % tenants}", str(number))
            asked.append(asyncio.create_task(_acquired(keeper, spec)))
            await asyncio.sleep(_EVERY_S)
        return await asyncio.gather(*asked), pool.claims["hit"]


async def _burst() -> list[float]:
    async with _engine() as engine, _keeping(engine, _BURST) as (keeper, pool):
        await pool.tend()
        took = await asyncio.gather(*(_acquired(keeper, _spec(f"tenant-{n}", "thread")) for n in range(_BURST)))
        assert pool.claims == {"hit": _BURST}
    return list(took)


async def _cold() -> tuple[list[float], list[float]]:
    client = docker.from_env()
    ours, theirs = [], []
    async with _engine() as engine, _keeping(engine, 0) as (keeper, _):
        for number in range(_WARMUP + _COLD):
            ours.append(await _acquired(keeper, _spec("tenant", str(number))))
            theirs.append(await asyncio.to_thread(_run_and_exec, client))
    return ours[_WARMUP:], theirs[_WARMUP:]


def _run_and_exec(client: docker.DockerClient) -> float:
    began_s = time.perf_counter()
    container = client.containers.run(
        _IMAGE,
        ["sleep", "1000"],
        detach=True,
        network_mode="none",
        mem_limit=_LIMITS.memory_bytes,
        pids_limit=_LIMITS.pids,
        labels={"airlock.instance": _INSTANCE},
    )
    try:
        code, _ = container.exec_run(["/bin/sh", "-c", "true"])
        assert code == 0
        return time.perf_counter() - began_s
    finally:
        container.remove(force=True)


def _row(table: Table, name: str, took_s: Sequence[float], beside: str = "") -> None:
    ordered = sorted(took_s)
    p95_s = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    table.add_row(name, str(len(ordered)), f"{statistics.median(ordered) * 1000:.1f}", f"{p95_s * 1000:.1f}", beside)


async def tables() -> list[Table]:
    """Return the table."""
    table = Table("from asking to the first command's end", "times", "p50 ms", "p95 ms", "beside", title="sandboxes")
    _row(table, "warm, one after another", await _warm())
    took, ready = await _steady()
    _row(table, f"warm, one every {_EVERY_S} s", took, f"{ready} of {_STEADY} were ready; others are made meanwhile")
    _row(table, f"warm, {_BURST} tenants at once", await _burst())
    ours, theirs = await _cold()
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    _row(table, "cold", ours, f"{ratio:.2f} x docker run + exec, in pairs")
    _row(table, "docker run + exec (SDK)", theirs)
    return [table]


async def _main() -> None:
    for table in await tables():
        Console(width=110).print(table)


if __name__ == "__main__":
    asyncio.run(_main())
