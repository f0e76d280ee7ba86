"""Two processes of a gateway on one engine: one sandbox a thread, and none removes what another uses.

Locks are of open files and not of processes, so two engines of one process stand in each other's way as two would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import SandboxBusy, SandboxUnavailable
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import owner_by_name
from sandbox.transition import TAKEN, OnTransition, Transition, ignored
from tests.docker_state import containers_of, volumes_of
from tests.integration.sandbox.live_engine import LIMITS, RUNTIME_IMAGE, instance_id, kill, run, spec, text
from tests.sandbox_keeper import make_keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Shared:
    """Processes of one gateway instance, each with an engine, a keeper and a clock."""

    def __init__(self, channels: Path) -> None:
        self.instance = instance_id()
        self.channels = channels
        self.engines: list[DockerEngine] = []
        self.keepers: list[SandboxKeeper] = []
        self.now_s = 0.0

    def process(
        self, *, max_live: int = 8, on_transition: OnTransition = ignored
    ) -> tuple[DockerEngine, SandboxKeeper]:
        """Return another process' engine and keeper."""
        engine = DockerEngine(
            instance=self.instance,
            channel_root=self.channels,
            runtime_image=RUNTIME_IMAGE,
            on_transition=on_transition,
        )
        keeper = make_keeper(engine, idle_timeout_s=60, max_live=max_live, clock=lambda: self.now_s)
        self.engines.append(engine)
        self.keepers.append(keeper)
        return engine, keeper

    async def close(self) -> None:
        """Stop every process, and see that nothing is left but the files of threads."""
        for engine, keeper in zip(self.engines, self.keepers, strict=True):
            await keeper.close(remove_workspaces=True)
            await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    made = Shared(tmp_path)
    yield made
    await made.close()
    assert containers_of(made.instance) == []
    assert volumes_of(made.instance) == []
    assert list(tmp_path.iterdir()) == []


async def said(keeper: SandboxKeeper, command: str, thread: str = "t") -> str:
    async with keeper.acquire(spec(thread)) as sandbox:
        return text(await run(sandbox.shell, command))


async def test_processes_that_ask_at_the_same_time_have_one_sandbox_and_its_files(shared: Shared) -> None:
    (_, one), (_, other) = shared.process(), shared.process()
    await asyncio.gather(said(one, "echo 1 > /tmp/one"), said(other, "echo 2 > /tmp/other"))
    assert len(containers_of(shared.instance)) == 1
    assert await said(one, "cat /tmp/other") == "2\n"
    assert await said(other, "cat /tmp/one") == "1\n"


async def test_one_that_takes_the_other_s_sandbox_reports_that_it_runs(shared: Shared) -> None:
    """The one that made it may have died before it reported that; see Transition.observed."""
    made: list[Transition] = []
    taken: list[Transition] = []
    (_, one), (_, other) = shared.process(on_transition=made.append), shared.process(on_transition=taken.append)
    await said(one, "true")
    await said(other, "true")
    assert [(reported.state, reported.observed) for reported in made] == [("creating", False), ("running", False)]
    assert taken == [dataclasses.replace(made[1], reason=TAKEN, observed=True)]


async def test_one_that_finds_it_idle_leaves_it_to_the_other_and_the_last_removes_it(shared: Shared) -> None:
    (_, one), (_, other) = shared.process(), shared.process()
    await said(one, "echo here > /tmp/a")
    shared.now_s = 30.0
    await said(other, "true")
    shared.now_s = 70.0
    one.sweep()
    await one.settled()
    assert (one.live, other.live) == (0, 1)
    assert await said(other, "cat /tmp/a") == "here\n"
    assert await said(one, "cat /tmp/a") == "here\n", "it finds it again"
    shared.now_s = 200.0
    for keeper in (one, other):
        keeper.sweep()
        await keeper.settled()
    assert containers_of(shared.instance) == []


async def test_one_that_stops_leaves_what_the_other_has(shared: Shared) -> None:
    (engine, one), (_, other) = shared.process(), shared.process()
    for keeper in (one, other):
        await said(keeper, "echo here > /tmp/a")
    await said(one, "true", "alone")
    assert len(containers_of(shared.instance)) == 2
    await one.close(remove_workspaces=True)
    await engine.close()
    assert len(containers_of(shared.instance)) == 1
    assert await said(other, "cat /tmp/a") == "here\n"
    assert len(volumes_of(shared.instance)) == 2, "while another serves, no thread's files go"


async def test_what_a_killed_process_had_is_the_next_one_s_that_asks_or_looks(shared: Shared) -> None:
    (dead, one), (engine, other) = shared.process(), shared.process()
    await said(one, "echo here > /tmp/a", "asked")
    await said(one, "true", "forgotten")
    await other.adopt(await engine.reconcile())
    assert other.live == 0, "it lives, and so do its sandboxes"
    kill(dead)
    assert await said(other, "cat /tmp/a", "asked") == "here\n"
    await other.adopt(await engine.reconcile())
    assert other.live == 2
    shared.now_s = 100.0
    other.sweep()
    await other.settled()
    assert containers_of(shared.instance) == []


async def test_a_sandbox_is_stopped_for_all_processes_when_no_call_is_under_way_in_any(shared: Shared) -> None:
    (engine, one), (_, other) = shared.process(), shared.process()
    await said(one, "touch /workspace/kept /tmp/lost")
    async with other.acquire(spec("t")) as busy:
        with pytest.raises(SandboxBusy):
            await engine.stop("tenant-a", "t")
        assert text(await run(busy.shell, "echo on")) == "on\n"
    (live,) = await engine.listed("tenant-a")
    assert await engine.listed("tenant-b") == []
    stopped = await engine.stop("tenant-a", "t")
    assert stopped is not None
    assert (stopped.id, stopped.thread, stopped.state) == (live.id, "t", "idle_stopped")
    assert await engine.stop("tenant-a", "t") == stopped
    assert (engine.owners(), await engine.listed("tenant-a")) == ([], [stopped])
    # Both had connections to it a moment ago: neither has an error.
    for keeper in (one, other):
        assert await said(keeper, "ls /workspace /tmp") == "/tmp:\n\n/workspace:\nkept\n"
    assert len(containers_of(shared.instance)) == 1


async def test_another_spec_replaces_a_sandbox_once_no_process_has_calls_in_it(shared: Shared) -> None:
    (_, one), (_, other) = shared.process(), shared.process()
    changed = dataclasses.replace(spec("t"), limits=dataclasses.replace(LIMITS, pids=63))
    async with one.acquire(spec("t")) as old, other.acquire(changed) as found:
        assert (found.id, found.outdated) == (old.id, True)
    async with other.acquire(changed) as new:
        assert (new.id != old.id, new.outdated) == (True, False)
    async with one.acquire(changed) as same:
        assert same.id == new.id
    assert len(containers_of(shared.instance)) == 1


async def test_a_dead_sandbox_is_listed_with_its_reason_and_replaced_once_for_all_processes(shared: Shared) -> None:
    (engine, one), (_, other) = shared.process(), shared.process()
    for keeper in (one, other):
        await said(keeper, "true")
    subprocess.run(["docker", "kill", *containers_of(shared.instance)], check=True, capture_output=True)
    (dead,) = await engine.listed("tenant-a")
    assert (dead.state, dead.reason) == ("failed", "its container ended with exit code 137 (SIGKILL)")
    remover = await engine._parts.enter_existing(owner_by_name("tenant-a", "t"))
    assert remover is not None
    (dead,) = await engine.listed("tenant-a")
    assert (dead.state, dead.reason) == ("failed", ""), "who is at work on it may just remove it"
    remover.lock.close()
    shared.now_s = 10.0
    assert list(await asyncio.gather(said(one, "echo 1"), said(other, "echo 2"))) == ["1\n", "2\n"]
    assert len(containers_of(shared.instance)) == 1


async def test_a_limit_counts_the_sandboxes_of_all_processes_and_idle_ones_make_room(shared: Shared) -> None:
    (_, one), (_, other) = shared.process(max_live=2), shared.process(max_live=2)
    await said(one, "true", "a")
    async with one.acquire(spec("b")):
        await said(other, "true", "c")
        assert len(containers_of(shared.instance)) == 2, "the idle one went, though it was another process'"
        async with other.acquire(spec("c")):
            with pytest.raises(SandboxUnavailable, match="busy"):
                await said(other, "true", "d")
    assert await said(one, "echo again", "a") == "again\n"


async def test_a_look_finds_another_process_sandbox_and_makes_none(shared: Shared) -> None:
    (_, one), (_, other) = shared.process(), shared.process()
    async with other.acquire_existing(spec("t")) as none:
        assert none is None
    assert list(shared.channels.glob("locks/*-*-*")) == [], "looking leaves no trace"
    async with one.acquire(spec("t")) as made, other.acquire_existing(spec("t")) as found:
        assert found is not None
        assert found.id == made.id
