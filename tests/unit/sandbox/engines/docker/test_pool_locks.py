"""The lock file of a pooled sandbox goes with it, also where a look at the pool is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.engines.docker.container_config import POOL_LABEL
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.lock_directory import LockDirectory, PoolLocks, StoppedSandboxes
from sandbox.sandbox import Owner


class FakeEngine:
    """The engine of a pool: `volumes` are those of pooled sandboxes; `answers` says whether it says who has one."""

    def __init__(self) -> None:
        self.volumes: set[str] = set()
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()

    async def pooled_volumes(self) -> Collection[str]:
        return self.volumes

    async def labelled(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return [{"Labels": {POOL_LABEL: pooled}} for pooled in self.volumes]

    async def owners(self) -> Mapping[str, Owner]:
        return {}

    async def owner_of(self, pooled: str) -> Owner | None:
        self.asked.set()
        await self.answers.wait()
        return None

    async def remove(self, sandbox_id: str) -> None: ...

    async def remove_empty(self, pooled: str) -> None: ...

    async def give_back(self, owner: Owner, pooled: str, *, filled: bool) -> None:
        self.volumes.discard(pooled)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def pool(engine: FakeEngine, tmp_path: Path) -> DockerPool:
    parts = SimpleNamespace(
        claims=engine,
        containers=engine,
        locks=LockDirectory(tmp_path, "gw"),
        pool_locks=PoolLocks(tmp_path, "gw"),
        stopped=StoppedSandboxes(tmp_path, "gw"),
    )
    return DockerPool(cast(Any, parts), cast(Any, None))


async def cancelled_look(pool: DockerPool, engine: FakeEngine) -> None:
    """Cancel a reconciliation that waits for the engine behind the gate of a pooled sandbox."""
    looking = asyncio.create_task(pool.reconcile())
    await engine.asked.wait()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking


async def test_a_cancelled_look_at_a_sandbox_whose_maker_removed_it_meanwhile_leaves_no_lock(
    pool: DockerPool, engine: FakeEngine
) -> None:
    engine.volumes = {"pool-1"}
    await cancelled_look(pool, engine)
    assert pool.parts.pool_locks.ids() == set()


async def test_a_lock_that_a_killed_process_left_stays_until_a_look_has_removed_the_sandbox(
    pool: DockerPool, engine: FakeEngine
) -> None:
    # It may be the only trace: the process was killed between the directory and the container.
    pool.parts.pool_locks.enter_new("pool-1").close()
    await cancelled_look(pool, engine)
    assert pool.parts.pool_locks.ids() == {"pool-1"}
    engine.answers.set()
    assert await pool.reconcile() == []
    assert pool.parts.pool_locks.ids() == set()


async def test_a_sandbox_that_its_maker_has_is_left_alone(pool: DockerPool, engine: FakeEngine) -> None:
    lock = pool.parts.pool_locks.enter_new("pool-1")
    engine.volumes = {"pool-1"}
    assert await pool.reconcile() == []
    assert (pool.parts.pool_locks.ids(), engine.volumes) == ({"pool-1"}, {"pool-1"})
    lock.close()
