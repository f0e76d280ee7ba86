"""What the Docker engine does without an engine that answers."""

from __future__ import annotations

from pathlib import Path

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.sandbox import owner_by_name
from sandbox.thread_lock import Note


async def test_who_makes_room_leaves_a_claim_that_was_not_finished_as_it_is(tmp_path: Path) -> None:
    owner = owner_by_name("tenant", "t")
    engine = DockerEngine(
        instance="none",
        channel_root=tmp_path,
        runtime_image="none",
        requests=DockerRequests(f"unix://{tmp_path}/no.sock"),
    )
    lock = await engine._parts.locks.enter(owner)
    lock.write(Note("pool-1", "made", unchecked=True))
    lock.close()
    assert not await engine.remove_idle(None)
    again = engine._parts.locks.try_enter(owner)
    assert again is not None  # its gate is not shut
    again.close()
    await engine.close()
