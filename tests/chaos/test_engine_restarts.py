"""What sandboxes stand on goes away under them: the machine, the engine, a container, a volume."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from gateway.client import Client
from gateway.errors import Unavailable
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.errors import DaemonLost, EngineUnavailable
from sandbox.sandbox import Sandbox, SandboxSpec, owner_of
from sandbox.thread_lock import Note
from tests.chaos.own_engine import EngineRefused, OwnEngine, kill_all, own_engine
from tests.gateway_process import make_home, served
from tests.integration.sandbox import live_engine
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, kill, run, text
from tests.integration.sandbox.made_images import busybox, image
from tests.sandbox_keeper import make_keeper


class Host:
    """An engine to be killed, and the processes of one gateway instance on it."""

    def __init__(self, own: OwnEngine, image_name: str, channels: Path) -> None:
        self.own = own
        self.image = image_name
        self.channels = channels
        self.instance = instance_id()
        self.engines: list[DockerEngine] = []

    def engine(self) -> DockerEngine:
        """Return what the next process of the gateway would have; those before it were killed."""
        for before in self.engines:
            kill(before)
        made = DockerEngine(
            instance=self.instance,
            channel_root=self.channels,
            runtime_image=RUNTIME_IMAGE,
            requests=DockerRequests(self.own.url),
        )
        self.engines.append(made)
        return made

    def spec(self, thread: str = "t") -> SandboxSpec:
        return dataclasses.replace(live_engine.spec(thread), image=self.image)

    def ids(self, kind: str, *options: str) -> list[str]:
        """Return the containers (`ps`) or volumes (`volume ls`) of the instance."""
        listing = [*kind.split(), "-q", *options, "--filter", f"label=airlock.instance={self.instance}"]
        return self.own.docker(*listing).split()

    def reboot(self) -> None:
        """Kill the engine and everything on it, and start it again."""
        self.own.kill()
        kill_all([*self.own.shims(), *(pid for pids in self.own.containers().values() for pid in pids)])
        self.own.start()


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[OwnEngine, str]]:
    with image(busybox()) as name, own_engine(name, RUNTIME_IMAGE, live_restore=True) as made:
        yield made, name


@pytest.fixture
async def host(own: tuple[OwnEngine, str], tmp_path: Path) -> AsyncIterator[Host]:
    """Nothing is left of it at the end."""
    made = Host(*own, tmp_path / "channels")
    yield made
    last = made.engine()
    for sandbox_id in await last.owned():
        await last.remove(sandbox_id)
    await last.remove_workspaces()
    for engine in made.engines:
        await engine.close()
    assert made.ids("ps", "-a") == made.ids("volume ls") == []
    assert not made.channels.exists() or list(made.channels.iterdir()) == []


async def _written(engine: DockerEngine, spec: SandboxSpec) -> Sandbox:
    sandbox = await engine.create(spec)
    assert (await run(sandbox.shell, f"echo {spec.thread} > /workspace/a")).outcome == "exited"
    return sandbox


async def _found(engine: DockerEngine, spec: SandboxSpec) -> Sandbox:
    sandbox = await engine.create(spec)
    assert text(await run(sandbox.shell, "cat /workspace/a")) == f"{spec.thread}\n"
    return sandbox


@pytest.mark.parametrize("channels", ["kept", "lost"])
async def test_a_reboot_loses_no_file_of_sandboxes_that_ran_or_were_stopped_and_leaves_nothing(
    host: Host, channels: str
) -> None:
    engine = host.engine()
    ran = await _written(engine, host.spec("ran"))
    stopped = await _written(engine, host.spec("stopped"))
    assert await engine.stop_idle(stopped.id)
    await asyncio.to_thread(host.reboot)
    if channels == "lost":  # they were on a tmpfs
        shutil.rmtree(host.channels)
    engine = host.engine()
    assert await engine.reconcile() == []
    again = [await _found(engine, host.spec(thread)) for thread in ("ran", "stopped")]
    assert again[0].id != ran.id
    assert (again[1].id == stopped.id) == (channels == "kept")
    assert sorted(await engine.owned()) == sorted(one.id for one in again)
    places = {path.name for path in host.channels.iterdir()} - {"locks", "stopped"}
    assert places == {one.id for one in again}


# The docker package leaves a socket that did not connect to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
async def test_what_lives_on_while_the_engine_is_killed_is_used_meanwhile_and_adopted_afterwards(
    host: Host,
) -> None:
    engine = host.engine()
    sandbox = await _written(engine, host.spec())
    await asyncio.to_thread(host.own.kill)
    try:
        assert text(await run(sandbox.shell, "cat /workspace/a")) == "t\n"
        with pytest.raises(EngineUnavailable):
            await engine.create(host.spec("other"))
        with pytest.raises(EngineUnavailable):
            await host.engine().reconcile()
    finally:
        await asyncio.to_thread(host.own.start)
    engine = host.engine()
    assert [left.id for left in await engine.reconcile()] == [sandbox.id]
    assert (await _found(engine, host.spec())).id == sandbox.id
    await _written(engine, host.spec("other"))


@pytest.mark.parametrize("how", ["paused", "removed", "killed", "killed with its shim"])
async def test_a_call_in_a_container_that_is_taken_away_is_lost_and_the_next_one_finds_its_files(
    host: Host, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = host.engine()
    keeper = make_keeper(engine)
    async with keeper.acquire(host.spec()) as sandbox:
        assert (await run(sandbox.shell, "echo t > /workspace/a")).outcome == "exited"
        if how == "paused":  # nothing but time tells of it
            monkeypatch.setattr(sandbox, "shell", dataclasses.replace(sandbox.shell, grace_s=0.5))
        calling = asyncio.create_task(run(sandbox.shell, "sleep 100", timeout_s=5 if how == "paused" else 90))
        async with asyncio.timeout(60):
            while "sleep" not in text(await run(sandbox.shell, "ps -o args", call_id="c2")):
                await asyncio.sleep(0.02)
        (container,) = host.ids("ps")
        if how in {"paused", "removed"}:
            host.own.docker(*(("pause",) if how == "paused" else ("rm", "-f")), container)
        else:
            kill_all(host.own.shims() if how == "killed with its shim" else [])
            kill_all([pids[0] for pids in host.own.containers().values()])
        async with asyncio.timeout(60):
            assert (await calling).outcome == "daemon_lost"
    async with keeper.acquire(host.spec()) as again:
        assert again.id != sandbox.id
        assert text(await run(again.shell, "cat /workspace/a")) == "t\n"
    await keeper.close()
    assert host.ids("ps", "-a") == []


async def test_a_volume_that_is_removed_behind_our_back_is_an_empty_workspace_and_one_in_use_is_not_removed(
    host: Host,
) -> None:
    engine = host.engine()
    stopped = await _written(engine, host.spec())
    assert await engine.stop_idle(stopped.id)
    (volume,) = [name for name in host.ids("volume ls") if "workspace" in name]
    with pytest.raises(EngineRefused, match="in use"):
        host.own.docker("volume", "rm", volume)
    host.own.docker("rm", "-f", *host.ids("ps", "-a"))
    host.own.docker("volume", "rm", volume)
    sandbox = await engine.create(host.spec())
    assert sandbox.id != stopped.id
    assert text(await run(sandbox.shell, "ls /workspace")) == ""
    assert (await run(sandbox.shell, "echo on > /workspace/b")).exit_code == 0


async def test_a_gateway_whose_engine_goes_away_says_so_goes_on_with_what_lives_and_is_well_when_it_is_back(
    own: tuple[OwnEngine, str], tmp_path: Path
) -> None:
    engine, image_name = own
    home = await asyncio.to_thread(make_home, tmp_path)
    home.configure(sandbox={"engine_url": engine.url, "runtime_image": RUNTIME_IMAGE})
    policy = home.config.parent / "policies" / "default.yaml"
    document = yaml.safe_load(policy.read_text(encoding="utf-8"))
    policy.write_text(yaml.safe_dump({**document, "sandbox": {"image": image_name}}), encoding="utf-8")
    with served(home) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.write_file("there", "/workspace/a", b"1")
            await asyncio.to_thread(engine.kill)
            try:
                here = await client.call_tool("execute", {"command": "cat /workspace/a"}, thread="there")
                assert (here.outcome, here.content) == ("exited", "1")
                new = await client.call_tool("execute", {"command": "true"}, thread="new")
                assert new.outcome == "failed_to_start"
                assert "does not answer" in new.note + new.content
                for refused in (
                    client.write_file("new", "/workspace/a", b"1"),
                    client.start_process(["true"], thread="new"),
                    client.create_sandbox("new"),
                    client.stop_sandbox("there"),
                    client.delete_sandbox("there"),
                    client.create_snapshot("there"),
                ):
                    with pytest.raises(Unavailable):
                        await refused
            finally:
                await asyncio.to_thread(engine.start)
            await client.write_file("new", "/workspace/a", b"2")
            assert await client.read_file("there", "/workspace/a") == b"1"
            assert (await client.get_sandbox("there")).thread == "there"
    assert engine.docker("ps", "-aq") == ""


async def test_what_a_process_leaves_that_dies_before_its_sandbox_has_a_container_is_removed(host: Host) -> None:
    died = host.engine()
    owner = owner_of(host.spec())
    lock = await died._parts.locks.enter(owner)
    lock.write(Note("t-1", "made"))
    died._parts.channels.begin(owner, "t-1")
    lock.close()
    assert await host.engine().reconcile() == []
    assert list(host.channels.iterdir()) == [host.channels / "locks"]
    assert not died.has(host.spec())


async def test_calls_in_a_sandbox_whose_processes_all_die_at_once_all_end_with_an_error(host: Host) -> None:
    engine = host.engine()
    sandbox = await _written(engine, host.spec())
    calls = [asyncio.create_task(run(sandbox.shell, "sleep 100", call_id=f"c{n}", timeout_s=90)) for n in range(5)]
    async with asyncio.timeout(60):
        while text(await run(sandbox.shell, "ps -o args", call_id="look")).count("sleep 100") < len(calls):
            await asyncio.sleep(0.02)
    kill_all(host.own.daemons())
    async with asyncio.timeout(60):
        assert {one.outcome for one in await asyncio.gather(*calls)} == {"daemon_lost"}
    with pytest.raises(DaemonLost):
        await sandbox.files.stat("/workspace/a")
    await _found(engine, host.spec())
