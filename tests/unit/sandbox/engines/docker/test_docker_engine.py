"""What the Docker engine does without an engine that answers."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.lock_directory import Stopped
from sandbox.sandbox import SandboxSpec, owner_by_name
from sandbox.thread_lock import Note


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[DockerEngine]:
    made = DockerEngine(
        instance="none",
        channel_root=tmp_path,
        runtime_image="none",
        requests=DockerRequests(f"unix://{tmp_path}/no.sock"),
    )
    yield made
    await made.close()


async def test_who_makes_room_leaves_a_claim_that_was_not_finished_as_it_is(engine: DockerEngine) -> None:
    owner = owner_by_name("tenant", "t")
    lock = await engine._parts.locks.enter(owner)
    lock.write(Note("pool-1", "made", unchecked=True))
    lock.close()
    assert not await engine.remove_idle(None)
    again = engine._parts.locks.try_enter(owner)
    assert again is not None  # its gate is not shut
    again.close()


async def test_a_disk_that_is_full_when_a_stopped_sandbox_is_to_start_shuts_no_gate(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_by_name("tenant", "t")
    engine._parts.stopped.write(owner, Stopped(Note("s-1", "made")))
    lock = await engine._parts.locks.enter(owner)

    def full(note: Note) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(lock, "write", full)
    blueprint = SimpleNamespace(owner=owner, spec=SandboxSpec("tenant", "t", "image"))
    with pytest.raises(OSError, match="no space left"):
        await engine._stopped.resume(cast(Any, blueprint), lock)
    assert not engine._parts.locks.has(owner)
    assert engine._parts.stopped.has(owner)
