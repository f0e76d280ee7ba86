"""A gateway that comes back finds its sandboxes as it left them, and nothing that is not its own or not fit."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.client import Client
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.protocols import ProcessSpec
from sandbox.sandbox import Sandbox
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import make_home, served
from tests.integration.sandbox.live_engine import (
    IMAGE,
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

# Ends as soon as nothing of the killed gateway's command is left; the time limit of the command is the failure.
GONE = "while grep -qs 43[2]1 /proc/[0-9]*/cmdline; do sleep 0.05; done"


class Restarts:
    """One gateway instance whose processes come and go."""

    def __init__(self, channels: Path) -> None:
        self.instance = instance_id()
        self.channels = channels
        self.engines: list[DockerEngine] = []

    def engine(self) -> DockerEngine:
        """Return what the next process of the gateway would have. The one before it is not notified, as by kill -9."""
        for before in self.engines:
            kill(before)
        made = DockerEngine(instance=self.instance, channel_root=self.channels, runtime_image=RUNTIME_IMAGE)
        self.engines.append(made)
        return made

    async def left(self, **changes: Any) -> Sandbox:
        """Return a sandbox of a process that is gone now."""
        return await self.engine().create(dataclasses.replace(spec("left"), **changes))


@pytest_asyncio.fixture(loop_scope="session")
async def restarts(tmp_path: Path) -> AsyncIterator[Restarts]:
    made = Restarts(tmp_path)
    yield made
    await removed(made.engine(), made.instance)
    for engine in made.engines:
        await engine.close()
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def killed_gateway(restarts: Restarts) -> Iterator[dict[str, Any]]:
    """Yield what a process said before it was killed with SIGKILL."""
    command = [sys.executable, "-m", "tests.integration.sandbox.abandoning", restarts.instance, str(restarts.channels)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
        finally:
            process.kill()
    yield json.loads(said)


async def start(sandbox: Sandbox, process_id: str) -> None:
    await sandbox.processes.start(ProcessSpec(process_id, [b"/bin/sleep", b"1000"]))


async def test_kill_9_of_the_gateway_loses_no_background_process_and_ends_what_was_under_way(
    restarts: Restarts,
) -> None:
    with killed_gateway(restarts) as said:
        engine = restarts.engine()
        (left,) = await engine.reconcile()
        assert left.id == said["sandbox"]
        sandbox = await engine.create(spec("left"))
        assert sandbox.id == said["sandbox"]

        (process,) = (await sandbox.processes.list()).processes
        assert (process.id, process.pid, process.running) == ("server", said["pid"], True)
        assert said["read"] == "first\n"
        assert (await run(sandbox.shell, GONE)).exit_code == 0

        await sandbox.files.write("/workspace/go", b"")
        page = await sandbox.processes.read("server", offset=said["offset"], wait_s=10)
        assert (page.offset, page.data) == (said["offset"], b"second\n")
        assert (await sandbox.processes.wait("server", wait_s=10)).exit_code == 7


async def test_a_sandbox_that_is_taken_over_is_the_thread_s_for_good(restarts: Restarts) -> None:
    left = await restarts.left()
    await start(left, "p")
    engine = restarts.engine()
    keeper = make_keeper(engine)
    await keeper.adopt(await engine.reconcile())
    assert keeper.live == 1
    for _ in range(2):
        async with keeper.acquire(spec("left")) as sandbox:
            assert sandbox.id == left.id
            assert (await sandbox.processes.list()).processes[0].running
    async with keeper.acquire(spec("other")) as other:
        assert other.id != left.id
    await keeper.close()
    assert containers_of(restarts.instance) == []


async def test_what_is_idle_for_long_enough_goes(restarts: Restarts) -> None:
    await restarts.left()
    engine = restarts.engine()
    now_s = 0.0
    keeper = make_keeper(engine, idle_timeout_s=60, clock=lambda: now_s)
    await keeper.adopt(await engine.reconcile())
    keeper.sweep()
    await keeper.settled()
    assert len(containers_of(restarts.instance)) == 1
    now_s = 60.0
    keeper.sweep()
    await keeper.settled()
    assert containers_of(restarts.instance) == []
    await keeper.close()


@pytest.mark.parametrize(
    "changes",
    [{"limits": dataclasses.replace(LIMITS, pids=63)}, {"limits": dataclasses.replace(LIMITS, cpus=0.5)}],
    ids=["fewer processes", "less processor"],
)
async def test_a_sandbox_made_for_other_limits_is_replaced_with_the_same_files(
    restarts: Restarts, changes: dict[str, Any]
) -> None:
    left = await restarts.left()
    await left.files.write("/workspace/a", b"1")
    await start(left, "p")
    engine = restarts.engine()
    await engine.reconcile()
    sandbox = await engine.create(dataclasses.replace(spec("left"), **changes))
    assert sandbox.id != left.id
    assert [*await engine.owned()] == [sandbox.id]
    assert (await sandbox.processes.list()).processes == ()
    assert (await sandbox.files.stat("/workspace/a")).size_bytes == 1


async def test_a_tag_that_names_another_image_by_now_does_not_take_over_the_old_one(restarts: Restarts) -> None:
    tag = f"airlock-test-{restarts.instance}"
    subprocess.run(["docker", "tag", IMAGE, tag], check=True)
    try:
        left = await restarts.left(image=tag)
        engine = restarts.engine()
        await engine.reconcile()
        changed = f"FROM {IMAGE}\nENV CHANGED=1\n"
        subprocess.run(
            ["docker", "build", "-q", "-t", tag, "-"], input=changed.encode(), check=True, capture_output=True
        )
        sandbox = await engine.create(spec("left", image=tag))
        assert sandbox.id != left.id
        assert text(await run(sandbox.shell, "echo here")) == "here\n"
        await engine.remove(sandbox.id)
    finally:
        subprocess.run(["docker", "image", "rm", "-f", tag], check=True, capture_output=True)


async def test_another_tenant_s_thread_of_the_same_name_does_not_get_it(restarts: Restarts) -> None:
    left = await restarts.left()
    engine = restarts.engine()
    await engine.reconcile()
    other = await engine.create(spec("left", tenant="tenant-b"))
    assert other.id != left.id
    assert sorted(await engine.owned()) == sorted([left.id, other.id])


@pytest.mark.parametrize("how", ["killed", "paused", "without its channel"])
async def test_what_cannot_be_used_any_more_is_removed_at_the_start_and_its_files_are_found(
    restarts: Restarts, how: str
) -> None:
    left = await restarts.left()
    await left.files.write("/workspace/a", b"1")
    (container,) = containers_of(restarts.instance)
    if how == "without its channel":
        (restarts.channels / left.id / "daemon.sock").unlink()
    else:
        command = {"killed": "kill", "paused": "pause"}[how]
        subprocess.run(["docker", command, container], check=True, capture_output=True)
    engine = restarts.engine()
    assert await engine.reconcile() == []
    assert containers_of(restarts.instance) == []
    sandbox = await engine.create(spec("left"))
    assert (await sandbox.files.stat("/workspace/a")).size_bytes == 1


async def test_of_two_sandboxes_of_one_thread_the_newer_one_stays(restarts: Restarts) -> None:
    older = await restarts.left()
    shutil.rmtree(restarts.channels / "locks")  # or the second process would take the first one's
    newer = await restarts.left()
    assert older.id != newer.id
    engine = restarts.engine()
    assert [left.id for left in await engine.reconcile()] == [newer.id]
    assert [*await engine.owned()] == [newer.id]


async def test_a_caller_that_gives_up_while_it_is_taken_over_loses_nothing(restarts: Restarts) -> None:
    left = await restarts.left()
    await start(left, "p")
    engine = restarts.engine()
    await engine.reconcile()
    await engine.prepare()
    for delay_s in (0.0, 0.002, 0.005, 0.01):
        asking = asyncio.ensure_future(engine.create(spec("left")))
        done, _ = await asyncio.wait({asking}, timeout=delay_s)
        if done:
            break
        asking.cancel()
        await asyncio.wait({asking})
    sandbox = await engine.create(spec("left")) if not done else asking.result()
    assert sandbox.id == left.id
    assert (await sandbox.processes.list()).processes[0].running


async def test_an_orderly_stop_removes_what_was_taken_over_or_only_found_unless_keep_is_set(
    restarts: Restarts,
) -> None:
    left = await restarts.left()
    keeping = restarts.engine()
    keeper = make_keeper(keeping)
    await keeper.adopt(await keeping.reconcile())
    async with keeper.acquire(spec("left")):
        pass
    async with keeper.acquire(spec("other")) as other:
        pass
    await keeper.close(keep_sandboxes=True)
    await keeping.close(keep_sandboxes=True)
    assert len(containers_of(restarts.instance)) == 2

    removing = restarts.engine()
    keeper = make_keeper(removing)
    found = await removing.reconcile()
    assert {sandbox.id for sandbox in found} == {left.id, other.id}
    await keeper.adopt(found)
    await keeper.close()
    assert containers_of(restarts.instance) == []


async def output_of(client: Client) -> bytes:
    return b"".join([page.data async for page in client.process_output("t", "server")])


async def test_a_gateway_that_was_killed_and_one_that_stopped_with_keep_find_their_processes_again(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"keep_workspaces": True, "on_stop": "keep"})
    code = "echo first; read line; echo got $line; exit 7"
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.start_process(["sh", "-c", code], thread="t", process_id="server", stdin=True)
            (mine,) = containers_of(home.instance)
        gateway.kill()
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            (process,) = (await client.processes("t")).processes
            assert (process.id, process.running) == ("server", True)
            assert await output_of(client) == b"first\n"
    assert containers_of(home.instance) == [mine], "SIGTERM keeps it"
    home.configure(sandbox={"keep_workspaces": False, "on_stop": "remove"})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_process("t", "server", b"that\n", end=True)
            assert (await client.wait_process("t", "server", timeout_s=20)).exit_code == 7
            assert await output_of(client) == b"first\ngot that\n"
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []
