"""An idle sandbox is stopped, and the next call starts it again with its files; whatever happens in between."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.boot import Blueprint
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.lifetime import GRACE_S
from sandbox.errors import EngineUnavailable
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.protocols import ExecResult, ProcessSpec
from sandbox.sandbox import Sandbox
from sandbox.thread_lock import ThreadLock
from sandbox.transition import Transition
from tests.docker_state import containers_of, volumes_of
from tests.integration.sandbox.live_engine import (
    LIMITS,
    RUNTIME_IMAGE,
    instance_id,
    kill,
    removed,
    run,
    spec,
    text,
)
from tests.sandbox_keeper import make_keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")


# A background process, but for what it is called and runs.


class Processes:
    """Processes of one gateway instance, and a clock for all of them."""

    def __init__(self, channels: Path) -> None:
        self.instance = instance_id()
        self.channels = channels
        self.engines: list[DockerEngine] = []
        self.now_s = 1_000_000.0
        self.reported: list[Transition] = []

    def engine(self, *, lifetime_s: float | None = None) -> DockerEngine:
        """Return another process' engine."""
        made = DockerEngine(
            instance=self.instance,
            channel_root=self.channels,
            runtime_image=RUNTIME_IMAGE,
            lifetime_s=lifetime_s,
            on_transition=self.reported.append,
            clock=lambda: self.now_s,
        )
        self.engines.append(made)
        return made

    def running(self) -> int:
        """Return how many containers of the instance run."""
        listed = subprocess.run(
            ["docker", "ps", "-q", "--filter", f"label=airlock.instance={self.instance}"],
            capture_output=True,
            check=True,
        )
        return len(listed.stdout.split())

    @property
    def stopped(self) -> int:
        """How many sandboxes are stopped, by their containers."""
        return len(containers_of(self.instance)) - self.running()


@pytest_asyncio.fixture(loop_scope="session")
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    yield made
    for engine in made.engines:
        kill(engine)
    await removed(made.engine(), made.instance)
    for engine in made.engines:
        await engine.close()
    assert list(tmp_path.iterdir()) == []


def failing(error: BaseException) -> Callable[..., None]:
    """Return what fails whatever it is asked, for the process ends there."""

    def fail(*_: object) -> None:
        raise error

    return fail


async def stopped_one(engine: DockerEngine, **changes: Any) -> Sandbox:
    """Return a sandbox that was stopped; its workspace has a file."""
    sandbox = await engine.create(dataclasses.replace(spec("t"), **changes))
    await run(sandbox.shell, "echo kept > /workspace/a; echo lost > /tmp/a")
    assert await engine.stop_idle(sandbox.id)
    return sandbox


async def resumed(engine: DockerEngine, was: Sandbox) -> Sandbox:
    """Return what a stopped sandbox is after a call, the same one with its files and no others."""
    sandbox = await engine.create(spec("t"))
    assert sandbox.id == was.id
    assert text(await run(sandbox.shell, "cat /workspace/a; ls /tmp")) == "kept\n"
    return sandbox


async def test_a_stopped_sandbox_uses_no_memory_is_not_live_and_is_started_with_its_files_and_no_processes(
    processes: Processes,
) -> None:
    engine = processes.engine()
    sandbox = await engine.create(spec("t"))
    await sandbox.processes.start(ProcessSpec("p", [b"/bin/sleep", b"1000"]))
    await run(sandbox.shell, "echo kept > /workspace/a; echo lost > /tmp/a")
    assert await engine.stop_idle(sandbox.id)
    assert (processes.running(), processes.stopped) == (0, 1)
    assert (sandbox.alive, engine.has(spec("t")), engine.owners()) == (False, False, [])
    assert await engine.find(spec("t")) is None
    assert [(one.id, one.state) for one in await engine.listed("tenant-a")] == [(sandbox.id, "idle_stopped")]
    assert (await run(sandbox.shell, "true")).outcome == "daemon_lost"
    again = await resumed(engine, sandbox)
    assert (again.take_ended_processes(), (await again.processes.list()).processes) == (1, ())
    assert (processes.running(), processes.stopped) == (1, 0)
    assert [(one.id, one.state) for one in await engine.listed("tenant-a")] == [(again.id, "running")]
    assert await engine.stop_idle(again.id)
    assert (await resumed(engine, again)).take_ended_processes() == 0


async def test_what_no_call_uses_is_stopped_by_its_keeper_and_leased_again(processes: Processes) -> None:
    engine = processes.engine()
    now_s = 0.0
    keeper = make_keeper(engine, idle_timeout_s=60, stopped_timeout_s=3600, clock=lambda: now_s)
    async with keeper.acquire(spec("t")) as first:
        pass
    now_s = 60.0
    keeper.sweep()
    async with keeper.acquire(spec("t")) as again:  # while it is being stopped
        assert again.id == first.id
        assert text(await run(again.shell, "echo here")) == "here\n"
    await keeper.settled()
    assert processes.running() == 1
    await keeper.close()
    assert containers_of(processes.instance) == []


@pytest.mark.parametrize("how", ["another spec", "removed", "another thing for a socket", "no file of it"])
async def test_what_is_not_fit_to_be_started_is_replaced_and_its_files_are_found(
    processes: Processes, how: str
) -> None:
    engine = processes.engine()
    was = await stopped_one(engine)
    asked = spec("t")
    if how == "another spec":
        asked = dataclasses.replace(asked, limits=dataclasses.replace(LIMITS, pids=63))
    elif how == "removed":
        subprocess.run(["docker", "rm", *containers_of(processes.instance)], check=True, capture_output=True)
    elif how == "no file of it":
        (file,) = (processes.channels / "stopped").iterdir()
        file.write_text("{")
        await engine.reconcile()
        assert containers_of(processes.instance) == []
    else:
        (processes.channels / was.id / "daemon.sock").unlink()
        (processes.channels / was.id / "daemon.sock").mkdir()
    sandbox = await engine.create(asked)
    assert (sandbox.id == was.id, sandbox.take_ended_processes()) == (False, 0)
    assert text(await run(sandbox.shell, "cat /workspace/a")) == "kept\n"
    assert len(containers_of(processes.instance)) == 1


async def test_kill_9_while_it_is_stopped_loses_nothing_and_it_is_not_taken_for_an_orphan(
    processes: Processes,
) -> None:
    before = processes.engine()
    was = await stopped_one(before)
    kill(before)
    engine = processes.engine()
    assert await engine.reconcile() == []
    assert processes.stopped == 1
    await resumed(engine, was)


async def test_what_is_gone_when_a_process_begins_is_reported_as_gone(processes: Processes) -> None:
    before = processes.engine()
    await before.create(spec("t"))
    kill(before)
    subprocess.run(["docker", "rm", "-f", *containers_of(processes.instance)], check=True, capture_output=True)
    engine = processes.engine()
    (noted,) = await engine.listed("tenant-a")
    assert noted.state in ("creating", "failed"), "no process has looked yet"
    assert await engine.reconcile() == []
    assert [(one.name, one.state, one.reason) for one in processes.reported[-1:]] == [
        ("t", "removed", "its container no longer exists")
    ]
    assert await engine.listed("tenant-a") == []


@pytest.mark.parametrize("at", ["before it is stopped", "before its lock goes", "after it was started"])
async def test_kill_9_in_the_midst_of_stopping_or_starting_leaves_one_sandbox_with_its_files(
    processes: Processes, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = processes.engine()
    was = await before.create(spec("t"))
    await run(was.shell, "echo kept > /workspace/a")

    async def ended(stopped: StoppedContainers, boot: object, sandbox_id: str, lock: ThreadLock) -> None:
        lock.close()

    if at == "after it was started":
        assert await before.stop_idle(was.id)
        monkeypatch.setattr(Blueprint, "verified", failing(asyncio.CancelledError()))
        monkeypatch.setattr(StoppedContainers, "_stop_again", ended)
    elif at == "before it is stopped":
        monkeypatch.setattr("sandbox.engines.docker.docker_requests.stop_container", failing(EngineUnavailable("gone")))
    else:
        monkeypatch.setattr("sandbox.thread_lock.ThreadLock.retire", failing(asyncio.CancelledError()))
    with pytest.raises((asyncio.CancelledError, EngineUnavailable)):
        await (before.create(spec("t")) if at == "after it was started" else before.stop_idle(was.id))
    monkeypatch.undo()
    kill(before)
    engine = processes.engine()
    left = await engine.reconcile()
    assert [one.id for one in left] == ([] if at == "before its lock goes" else [was.id])
    sandbox = await engine.create(spec("t"))
    assert sandbox.id == was.id
    assert text(await run(sandbox.shell, "cat /workspace/a")) == "kept\n"
    assert len(containers_of(processes.instance)) == 1
    assert list(processes.channels.glob("stopped/*")) == []


@pytest.mark.parametrize("at", ["before it is started", "after it was started", "before it is verified"])
async def test_a_caller_that_gives_up_while_it_is_started_leaves_it_stopped(
    processes: Processes, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = processes.engine()
    was = await stopped_one(engine)
    loop, reached, given_up = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    start_again = docker_requests.start_again

    def waiting(client: docker_requests.Client, name: str) -> None:
        if at == "after it was started":
            start_again(client, name)
        loop.call_soon_threadsafe(reached.set)
        assert given_up.wait(60)
        if at == "before it is started":
            start_again(client, name)

    async def never(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    if at == "before it is verified":
        monkeypatch.setattr(Blueprint, "verified", never)
    else:
        monkeypatch.setattr(docker_requests, "start_again", waiting)
    asking = asyncio.ensure_future(engine.create(spec("t")))
    async with asyncio.timeout(60):
        await reached.wait()
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    given_up.set()
    monkeypatch.undo()
    stopped = await engine.stop("tenant-a", "t")  # behind the gate, so after what was begun is undone
    assert stopped is not None
    assert (stopped.id, stopped.state, processes.running(), processes.stopped) == (was.id, "idle_stopped", 0, 1)
    await resumed(engine, was)


async def test_a_sandbox_that_another_process_keeps_is_not_stopped_and_two_that_ask_start_one(
    processes: Processes,
) -> None:
    one, other = processes.engine(), processes.engine()
    sandbox = await one.create(spec("t"))
    await run(sandbox.shell, "echo kept > /workspace/a")
    theirs = await other.create(spec("t"))
    assert not await one.stop_idle(sandbox.id)
    assert text(await run(theirs.shell, "echo on")) == "on\n"
    assert await other.stop_idle(theirs.id)
    first, second = await asyncio.gather(resumed(one, sandbox), resumed(other, sandbox))
    assert first.id == second.id
    assert len(containers_of(processes.instance)) == 1


async def test_what_is_stopped_goes_on_request_with_its_thread_with_its_tenant_and_with_the_last_process(
    processes: Processes,
) -> None:
    engine = processes.engine()
    await stopped_one(engine)
    processes.now_s += 100
    assert await engine.trim_stopped(timeout_s=101, limit=1) == 0
    assert await engine.trim_stopped(timeout_s=100, limit=1) == 1
    assert containers_of(processes.instance) == []

    await stopped_one(engine)
    assert await engine.remove_of("tenant-a", "t") is not None
    assert await engine.remove_workspace("tenant-a", "t")
    assert (await engine.left_of("tenant-a")) == {"volumes": 0, "containers": 0}

    await stopped_one(engine)
    assert await engine.remove_all_of("tenant-a") == 1
    assert (await engine.left_of("tenant-a")) == {"volumes": 0, "containers": 0}

    await stopped_one(engine)
    await processes.engine().close()
    assert processes.stopped == 1, "one process still serves"
    await engine.remove_workspaces()
    await engine.close()
    assert containers_of(processes.instance) == []
    assert [name for name in volumes_of(processes.instance) if "workspace" in name] == []


async def test_a_sandbox_past_its_lifetime_is_replaced_once_it_is_unused(processes: Processes) -> None:
    engine = processes.engine(lifetime_s=100)
    now_s = 0.0
    keeper = make_keeper(engine, stopped_timeout_s=3600, clock=lambda: now_s)
    async with keeper.acquire(spec("t")) as first:
        await first.processes.start(ProcessSpec("p", [b"/bin/sleep", b"1000"]))
        processes.now_s += 100
    async with keeper.acquire(spec("t")) as second:
        assert (second.id != first.id, second.take_ended_processes()) == (True, 1)
    now_s += 300
    keeper.sweep()
    await keeper.settled()
    processes.now_s += 100
    async with keeper.acquire(spec("t")) as third:
        assert third.id != second.id, "its life goes on while it is stopped"
    await keeper.close()


async def test_past_the_lifetime_no_call_begins_whichever_process_has_calls_and_those_that_stay_are_ended(
    processes: Processes,
) -> None:
    one, other = (make_keeper(processes.engine(lifetime_s=100), stopped_timeout_s=3600) for _ in range(2))

    async def call(keeper: SandboxKeeper, command: str) -> tuple[str, ExecResult]:
        async with keeper.acquire(spec("t")) as sandbox:
            return sandbox.id, await run(sandbox.shell, command)

    first, _ = await call(other, "true")  # it has it at hand, and so the other one has calls in what it has
    staying = asyncio.create_task(call(one, "touch /workspace/begun; exec sleep 1000"))
    while (await call(other, "cat /workspace/begun"))[1].exit_code:
        await asyncio.sleep(0.05)
    processes.now_s += 100
    nexts = [asyncio.create_task(call(keeper, "true")) for keeper in (one, other)]
    _, waiting = await asyncio.wait(nexts, timeout=1)
    assert len(waiting) == 2, "they wait for the call that stays"
    processes.now_s += GRACE_S
    (second, ended), (same, done) = [await each for each in nexts]
    assert (second == same != first, ended.exit_code, done.exit_code) == (True, 0, 0)
    assert (await staying)[1].outcome == "daemon_lost"
    assert [one.reason for one in processes.reported if one.sandbox == first][-1] == (
        "its calls ran too long past its lifetime"
    )
    for keeper in (one, other):
        await keeper.close()


async def test_what_ended_is_reported_by_the_process_after_the_one_that_started_it_again(processes: Processes) -> None:
    before = processes.engine()
    sandbox = await before.create(spec("t"))
    await sandbox.processes.start(ProcessSpec("p", [b"/bin/sleep", b"1000"]))
    assert await before.stop_idle(sandbox.id)
    started = await before.create(spec("t"))
    await started.files.write("/workspace/a", b"no command, and so nobody is told")
    kill(before)
    engine = processes.engine()
    await engine.reconcile()
    found = await engine.create(spec("t"))
    assert (found.id, found.take_ended_processes()) == (sandbox.id, 1)
    assert (await processes.engine().create(spec("t"))).take_ended_processes() == 0
