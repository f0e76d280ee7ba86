"""A pooled sandbox belongs to no thread, then to one, whatever dies in between; and its files with it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from gateway.client import Client
from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_pool
from sandbox.engines.docker.container_config import container_name
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.engine_setup import BundleBroken
from sandbox.engines.handshake import introduced
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.sandbox import Sandbox, SandboxSpec, owner_of
from sandbox.v1.channel_pb2 import Posture
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import make_home, served
from tests.integration.sandbox.claiming import STEPS
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
from tests.integration.sandbox.test_workspaces import giving, tree_of

pytestmark = pytest.mark.asyncio(loop_scope="session")
KIND = PoolKind.of(spec())


class Processes:
    """The engines of several processes of one gateway instance."""

    def __init__(self, channels: Path) -> None:
        self.instance = instance_id()
        self.channels = channels
        self.engines: list[DockerEngine] = []

    def engine(self) -> DockerEngine:
        """Return another process' engine."""
        made = DockerEngine(instance=self.instance, channel_root=self.channels, runtime_image=RUNTIME_IMAGE)
        self.engines.append(made)
        return made

    def killed(self, engine: DockerEngine) -> None:
        """Have a process lose its locks, as if it were killed."""
        kill(engine)
        for pooled in engine.pool.unclaimed.values():
            pooled.lock.close()

    @property
    def volumes(self) -> list[str]:
        """What the instance's volumes are called, without what all names have."""
        prefix = f"airlock-{self.instance}-workspace-"
        return sorted(name.removeprefix(prefix) for name in volumes_of(self.instance))


@pytest_asyncio.fixture(loop_scope="session")
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    yield made
    for engine in made.engines:
        made.killed(engine)
    last = made.engine()
    await last.reconcile()
    await removed(last, made.instance)
    for engine in made.engines:
        await engine.close()
    assert list(tmp_path.iterdir()) == []


async def claimed(engine: DockerEngine, asked: SandboxSpec) -> Sandbox:
    kind = PoolKind.of(asked)
    try:
        pooled = await engine.pool.make_pooled(kind)
    except BundleBroken:
        # Another test's engine removed the runtime volume while no sandbox used it; the pool tries again, too.
        pooled = await engine.pool.make_pooled(kind)
    sandbox = await engine.pool.claim(pooled, asked)
    assert sandbox is not None
    return sandbox


def inspected(processes: Processes, sandbox_id: str) -> dict[str, Any]:
    name = container_name(processes.instance, sandbox_id)
    said = subprocess.run(["docker", "inspect", name], capture_output=True, check=True)
    return cast(dict[str, Any], json.loads(said.stdout)[0])


def docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], check=True, capture_output=True)


# --- whose it is ---


async def test_a_pooled_sandbox_has_no_owner_until_it_is_claimed_and_then_one_for_good(processes: Processes) -> None:
    engine = processes.engine()
    pooled = await engine.pool.make_pooled(KIND)
    assert not engine.owners()
    assert await engine.listed("tenant-a") == []
    assert set(inspected(processes, pooled.id)["Config"]["Labels"]) & {"airlock.tenant", "airlock.thread"} == set()
    asked = dataclasses.replace(spec("first"), env={"SECRET": "s3cret"})
    sandbox = await engine.pool.claim(pooled, asked)
    assert sandbox is not None
    assert (sandbox.id, sandbox.spec, sandbox.alive) == (pooled.id, asked, True)
    assert engine.owners() == [owner_of(asked)]
    assert [one.id for one in await engine.listed("tenant-a")] == [pooled.id]
    assert text(await run(sandbox.shell, 'echo "$SECRET"; echo mine > file')) == "s3cret\n"
    assert "s3cret" not in json.dumps(inspected(processes, pooled.id))
    with pytest.raises(PooledRefused):
        await engine.pool.claim(pooled, spec("second", tenant="tenant-b"))
    other = await engine.create(spec("second", tenant="tenant-b"))
    assert other.id != pooled.id
    assert text(await run(other.shell, "ls")) == ""
    assert (await engine.create(asked)).id == pooled.id
    await engine.remove(sandbox.id)
    fresh = await claimed(engine, spec("third", tenant="tenant-c"))
    assert text(await run(fresh.shell, "ls /workspace /tmp | grep -v :")).strip() == ""


async def test_two_claims_of_one_pooled_sandbox_at_once_have_one_winner(processes: Processes) -> None:
    engine = processes.engine()
    pooled = await engine.pool.make_pooled(KIND)
    asked = [spec("t", tenant=f"tenant-{number}") for number in range(4)]
    got = await asyncio.gather(*(engine.pool.claim(pooled, one) for one in asked), return_exceptions=True)
    assert sum(not isinstance(one, BaseException) for one in got) == 1
    assert sum(isinstance(one, PooledRefused) for one in got) == 3


async def test_a_thread_with_files_or_a_sandbox_gets_no_pooled_sandbox_which_stays_good(processes: Processes) -> None:
    engine = processes.engine()
    running = await engine.create(spec("running"))
    old = await engine.create(spec("old"))
    await run(old.shell, "echo old > file")
    await engine.remove(old.id)
    pooled = await engine.pool.make_pooled(KIND)
    assert await engine.pool.claim(pooled, spec("running")) is None
    assert await engine.pool.claim(pooled, spec("old")) is None
    assert engine.has(spec("running"))
    assert not engine.has(spec("old"))
    again = await engine.create(spec("old"))
    assert text(await run(again.shell, "cat file")) == "old\n"
    assert (await engine.pool.claim(pooled, spec("new"))) is not None
    assert await running.ping()


# --- what is found in it ---


@pytest.mark.parametrize(
    "found",
    [
        "file in /workspace: touch /workspace/.hidden",
        "file in /tmp: touch /tmp/x",
        "file in /dev/shm: touch /dev/shm/x",
        "processes and threads: (sleep 1000 &) ; exit 0",
    ],
)
async def test_a_pooled_sandbox_that_was_used_is_refused_and_removed(processes: Processes, found: str) -> None:
    engine = processes.engine()
    pooled = await engine.pool.make_pooled(KIND)
    why, _, command = found.partition(": ")
    user = str(config.pooled_user_ids(processes.instance, pooled.id)[0])
    docker("exec", "--user", user, container_name(processes.instance, pooled.id), "/bin/sh", "-c", command)
    with pytest.raises(PooledRefused, match=why.rpartition(" ")[2]):
        await engine.pool.claim(pooled, spec())
    assert containers_of(processes.instance) == []
    assert processes.volumes == []
    assert not engine.has(spec())


async def test_a_pooled_sandbox_of_another_size_or_of_an_earlier_image_is_refused(processes: Processes) -> None:
    engine = processes.engine()
    image = f"{processes.instance}:moved"
    docker("tag", IMAGE, image)
    try:
        pooled = await engine.pool.make_pooled(PoolKind.of(spec(image=image)))
        docker("tag", RUNTIME_IMAGE, image)
        with pytest.raises(PooledRefused, match="another one"):
            await engine.pool.claim(pooled, spec(image=image))
    finally:
        docker("rmi", image)
    other = await engine.pool.make_pooled(KIND)
    with pytest.raises(PooledRefused):
        await engine.pool.claim(other, dataclasses.replace(spec(), limits=dataclasses.replace(LIMITS, pids=65)))
    assert containers_of(processes.instance) == []
    assert processes.volumes == []


async def test_a_pooled_sandbox_with_weaker_limits_than_its_thread_asks_is_refused(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def weaker(channel: Channel) -> Posture:
        posture = Posture()
        posture.CopyFrom(await introduced(channel))
        posture.pids_limit += 1
        return posture

    engine = processes.engine()
    pooled = await engine.pool.make_pooled(KIND)
    monkeypatch.setattr(docker_pool, "introduced", weaker)
    with pytest.raises(PooledRefused, match="process limit"):
        await engine.pool.claim(pooled, spec())
    assert containers_of(processes.instance) == []
    assert processes.volumes == []


async def test_a_dead_pooled_sandbox_is_refused_and_the_pool_makes_another(processes: Processes) -> None:
    engine = processes.engine()
    pool = SandboxPool(engine, engine, engine.pool, limit=1)
    pool.keep(KIND, 1)
    await pool.tend()
    (pooled,) = engine.pool.unclaimed
    docker("kill", container_name(processes.instance, pooled))
    sandbox = await pool.create(spec())
    assert sandbox.id != pooled
    await pool.tend()
    assert pool.counts["ready"] == 1
    other = await pool.create(spec("other"))
    assert other.id.startswith("pool-")
    await pool.drain()
    assert len(containers_of(processes.instance)) == 2


# --- crashes ---


async def test_kill_9_in_the_midst_of_a_claim_leaves_the_threads_sandbox_or_nothing(processes: Processes) -> None:
    command = [sys.executable, "-m", "tests.integration.sandbox.claiming", processes.instance, str(processes.channels)]
    dying = [subprocess.Popen([*command, step], stderr=subprocess.PIPE) for step in STEPS]
    for step, process in zip(STEPS, dying, strict=True):
        _, said = await asyncio.to_thread(process.communicate)
        assert process.returncode == -9, f"{step}: {said.decode()}"
    engine = processes.engine()
    # A call before a look meets what is half claimed itself.
    early = await engine.create(spec("taken"))
    assert not early.id.startswith("pool-")
    left = {one.thread: one.id for one in await engine.reconcile()}
    whole = {owner_of(spec(step))[1] for step in ("checked", "used")}
    assert set(left) == whole
    assert len(containers_of(processes.instance)) == 3
    assert sorted(processes.volumes) == sorted([*whole, *left.values(), owner_of(spec("taken"))[1]])
    for step in STEPS:
        sandbox = await engine.create(spec(step))
        assert sandbox.id == left.get(owner_of(spec(step))[1], sandbox.id)
        assert text(await run(sandbox.shell, "cat file 2>&-; echo x > y; cat y")) == (
            "kept\nx\n" if step == "used" else "x\n"
        )
    assert engine._parts.pool_locks.ids() == set()


async def test_one_who_gives_up_in_the_midst_of_a_claim_leaves_nothing(processes: Processes) -> None:
    engine = processes.engine()
    for _ in range(3):
        pooled = await engine.pool.make_pooled(KIND)
        claiming = asyncio.create_task(engine.pool.claim(pooled, spec("given-up")))
        await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        sandbox = await engine.create(spec("given-up"))  # behind its thread's gate: when all of that is gone
        assert containers_of(processes.instance) == [inspected(processes, sandbox.id)["Id"][:12]]
        await engine.remove(sandbox.id)
        assert await engine.remove_workspace("tenant-a", "given-up")
    assert processes.volumes == []


async def test_the_pooled_sandboxes_of_a_process_that_lives_are_left_alone_and_those_of_a_dead_one_removed(
    processes: Processes,
) -> None:
    maker, other = processes.engine(), processes.engine()
    pooled = await maker.pool.make_pooled(KIND)
    assert await other.reconcile() == []
    assert await pooled.ping()
    sandbox = await maker.pool.claim(pooled, spec())
    assert sandbox is not None
    assert await other.reconcile() == []
    assert await sandbox.ping()
    lost = await maker.pool.make_pooled(KIND)
    processes.killed(maker)
    (left,) = await other.reconcile()
    assert (left.id, (left.tenant, left.thread)) == (pooled.id, owner_of(spec()))
    assert inspected(processes, pooled.id)["State"]["Running"]
    assert processes.volumes == sorted([owner_of(spec())[1], pooled.id])
    assert lost.id not in await other.owned()


async def test_a_claim_that_was_removed_behind_our_back_is_made_anew_and_no_file_is_lost(processes: Processes) -> None:
    engine, other = processes.engine(), processes.engine()
    running, resting = await claimed(engine, spec("running")), await claimed(engine, spec("resting"))
    for sandbox in (running, resting):
        await run(sandbox.shell, "echo kept > file")
    assert await engine.stop_idle(resting.id)
    before = processes.volumes
    for sandbox in (running, resting):
        docker("volume", "rm", f"airlock-{processes.instance}-workspace-{owner_of(sandbox.spec)[1]}")
    await other.reconcile()
    assert processes.volumes == before
    assert await running.ping()
    await engine.remove(running.id)
    await engine.reconcile()
    for thread in ("running", "resting"):
        assert text(await run((await engine.create(spec(thread))).shell, "cat file")) == "kept\n"


async def test_a_claim_to_files_that_are_gone_goes_too_unless_the_thread_has_a_sandbox(processes: Processes) -> None:
    """A process that removes a thread's files removes the volume, and the claim to it then; it may die in between."""
    engine = processes.engine()
    gone, kept = await claimed(engine, spec("gone")), await claimed(engine, spec("kept"))
    await run(kept.shell, "echo kept > file")
    await engine.remove(gone.id)
    docker("volume", "rm", f"airlock-{processes.instance}-workspace-{gone.id}")
    assert len(processes.volumes) == 3
    await engine.reconcile()
    assert len(processes.volumes) == 2
    assert text(await run(kept.shell, "cat file")) == "kept\n"
    again = await engine.create(spec("gone"))
    assert text(await run(again.shell, "ls")) == ""


# --- its files ---


async def test_its_files_are_there_after_it_was_stopped_and_after_it_was_removed(processes: Processes) -> None:
    engine = processes.engine()
    sandbox = await claimed(engine, spec())
    first = text(await run(sandbox.shell, "echo kept > file; id -u"))
    assert await engine.stop_idle(sandbox.id)
    assert engine.stopped(spec()) == sandbox.id
    resumed = await engine.create(spec())
    assert resumed.id == sandbox.id
    assert text(await run(resumed.shell, "cat file; id -u")) == f"kept\n{first}"
    await engine.remove(resumed.id)
    cold = await engine.create(spec())
    assert cold.id != sandbox.id
    assert text(await run(cold.shell, "cat file; id -u; touch more")) == f"kept\n{first}"
    # And that one, too, is found by the next process, and stopped and started again.
    processes.killed(engine)
    after = processes.engine()
    assert [one.id for one in await after.reconcile()] == [cold.id]
    again = await after.create(spec())
    assert again.id == cold.id
    assert await after.stop_idle(again.id)
    assert text(await run((await after.create(spec())).shell, "ls")) == "file\nmore\n"


async def test_its_files_are_saved_and_replaced_as_any_threads(processes: Processes) -> None:
    engine = processes.engine()
    sandbox = await claimed(engine, spec())
    await run(sandbox.shell, "mkdir d; echo one > d/file")
    tree = await engine.save_workspace(spec(), tree_of)
    assert tree is not None
    assert {entry.path for entry in tree} >= {"d", "d/file"}
    await run(sandbox.shell, "echo two > d/file")
    await engine.replace_workspace(spec(), giving(tree))
    assert len(processes.volumes) == 2  # the claim of the thread, and the volume that it names; the old one is gone
    assert owner_of(spec())[1] in processes.volumes
    assert containers_of(processes.instance) == []
    again = await engine.create(spec())
    assert text(await run(again.shell, "cat d/file; touch d/mine; ls d")) == "one\nfile\nmine\n"
    # Stopped, it is replaced as well.
    other = await claimed(engine, spec("other"))
    assert await engine.stop_idle(other.id)
    await engine.replace_workspace(spec("other"), giving(tree))
    assert text(await run((await engine.create(spec("other"))).shell, "cat d/file")) == "one\n"


async def test_a_thread_and_a_tenant_are_erased_with_what_they_had_of_the_pool(processes: Processes) -> None:
    engine = processes.engine()
    mine = [await claimed(engine, spec(thread)) for thread in ("one", "running", "stopped", "cold")]
    other = await claimed(engine, spec("one", tenant="tenant-b"))
    await engine.remove(mine[0].id)
    assert await engine.remove_workspace("tenant-a", "one")
    assert not await engine.remove_workspace("tenant-a", "one")
    await engine.stop_idle(mine[2].id)
    await engine.remove(mine[3].id)
    await engine.pool.make_pooled(KIND)
    assert await engine.left_of("tenant-a") == {"volumes": 3, "containers": 2}
    # A crash between the files and the claim leaves something that still counts, and goes with the next look.
    docker("volume", "rm", f"airlock-{processes.instance}-workspace-{mine[3].id}")
    assert (await engine.left_of("tenant-a"))["volumes"] == 3
    assert await engine.remove_all_of("tenant-a") == 2
    assert await engine.left_of("tenant-a") == {"volumes": 0, "containers": 0}
    assert await other.ping()
    (pooled,) = engine.pool.unclaimed
    assert processes.volumes == sorted([other.id, owner_of(other.spec)[1], pooled])
    assert len(containers_of(processes.instance)) == 2


# --- as a gateway has it ---


async def test_a_gateway_has_one_ready_gives_it_away_and_takes_the_others_along(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"pool_limit": 2, "pool_min": 1})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client, asyncio.timeout(60):
            # A container that is there may still be on its way into the pool.
            for number in itertools.count():
                if (await client.create_sandbox(f"t{number}")).id.startswith("pool-"):
                    break
                await asyncio.sleep(1)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []
