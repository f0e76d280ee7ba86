"""What every Engine does alike."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.docker_engine import DockerEngine
from sandbox.engine import Engine
from sandbox.errors import DaemonLost, ImageMissing, NotFound, SandboxError, SandboxUnavailable
from tests.docker_state import containers_of, volumes_of
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, kill, removed, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_engine_may_be_made_ready_before_the_first_sandbox_and_again(engine: Engine) -> None:
    await engine.prepare()
    await engine.prepare()
    sandbox = await engine.create(spec("prepared"))
    assert await sandbox.ping()
    await engine.remove(sandbox.id)


async def test_reconciling_leaves_alone_what_this_process_made(engine: Engine) -> None:
    sandbox = await engine.create(spec("mine"))
    assert sandbox.id not in [left.id for left in await engine.reconcile()]
    assert sandbox.id in await engine.owned()
    assert await sandbox.ping()
    await engine.remove(sandbox.id)


async def test_a_sandbox_is_ready_when_it_is_there(engine: Engine) -> None:
    sandbox = await engine.create(spec("ready"))
    assert sandbox.spec == spec("ready")
    assert sandbox.alive
    assert await sandbox.ping()
    assert sandbox.id in await engine.owned()
    assert text(await run(sandbox.shell, "echo here")) == "here\n"
    await engine.remove(sandbox.id)


async def test_a_background_process_outlives_the_call_that_started_it_and_not_its_sandbox(engine: Engine) -> None:
    sandbox = await engine.create(spec("background"))
    started = await sandbox.processes.start(
        "b1",
        [b"/bin/sh", b"-c", b"echo up; exec cat"],
        env={},
        cwd="",
        terminal=False,
        stdin=True,
        merge_stderr=False,
        timeout_s=None,
    )
    assert started.running
    await sandbox.processes.write("b1", b"and on\n", end=True, wait_s=10)
    ended = await sandbox.processes.wait("b1", wait_s=30)
    assert (ended.outcome, ended.exit_code) == ("exited", 0)
    assert (await sandbox.processes.read("b1", offset=0, wait_s=10)).data == b"up\nand on\n"
    # That nobody can write any more is known a moment after the end of the process.
    last = await sandbox.processes.read("b1", offset=10, wait_s=10)
    assert (last.data, last.end, last.size_bytes) == (b"", True, 10)
    await engine.remove(sandbox.id)
    with pytest.raises(DaemonLost):
        await sandbox.processes.list()
    again = await engine.create(spec("background"))
    assert (await again.processes.list()).processes == ()
    await engine.remove(again.id)


async def test_a_program_has_streams_in_both_directions(engine: Engine) -> None:
    async def question() -> AsyncIterator[bytes]:
        yield b"quest"
        yield b"ion"

    async def take(stream: str, data: bytes) -> None:
        taken.append((stream, data))

    taken: list[tuple[str, bytes]] = []
    sandbox = await engine.create(spec("streams"))
    result = await sandbox.shell.run_program(
        [b"/bin/sh", b"-c", b"tr a-z A-Z; exit 5"],
        env={},
        cwd="/tmp",
        timeout_s=30,
        output_limit_bytes=1024,
        stdin=question(),
        on_output=take,
    )
    assert (result.outcome, result.exit_code, result.output_bytes) == ("exited", 5, 8)
    assert b"".join(data for _, data in taken) == b"QUESTION"
    await engine.remove(sandbox.id)


async def test_a_removed_sandbox_is_gone_and_removing_it_again_is_no_error(engine: Engine) -> None:
    sandbox = await engine.create(spec("gone"))
    await engine.remove(sandbox.id)
    await engine.remove(sandbox.id)
    await engine.remove("never-was")
    assert sandbox.id not in await engine.owned()
    assert not sandbox.alive
    assert not await sandbox.ping()
    assert (await run(sandbox.shell, "true")).outcome == "daemon_lost"


async def test_the_workspace_outlives_the_sandbox_and_nothing_else_does(engine: Engine) -> None:
    first = await engine.create(spec("outlives"))
    await run(first.shell, "echo kept > /workspace/a && echo lost > /tmp/b")
    await engine.remove(first.id)
    second = await engine.create(spec("outlives"))
    assert second.id != first.id
    assert text(await run(second.shell, "cat /workspace/a /tmp/b 2>/dev/null")) == "kept\n"
    await engine.remove(second.id)


async def test_a_removed_workspace_is_empty_the_next_time(engine: Engine) -> None:
    first = await engine.create(spec("forgotten"))
    await first.files.write("/workspace/a", b"1")
    with pytest.raises(SandboxError):  # in use
        await engine.remove_workspace("tenant-a", "forgotten")
    await engine.remove(first.id)
    before = await engine.left_of("tenant-a")
    assert await engine.remove_workspace("tenant-a", "forgotten")
    assert not await engine.remove_workspace("tenant-a", "forgotten")
    after = await engine.left_of("tenant-a")
    assert (before["volumes"] - after["volumes"], before["containers"] - after["containers"]) == (1, 0)
    assert await engine.left_of("nobody") == {"volumes": 0, "containers": 0}
    second = await engine.create(spec("forgotten"))
    with pytest.raises(NotFound):
        await second.files.stat("/workspace/a")
    await engine.remove(second.id)


async def test_all_that_an_engine_has_of_a_tenant_goes_at_once_and_nothing_of_others(engine: Engine) -> None:
    gone = [await engine.create(spec(f"gone{n}", "tenant-gone")) for n in range(2)]
    kept = await engine.create(spec("gone0", "tenant-kept"))
    await gone[0].files.write("/workspace/a", b"1")
    await engine.remove(gone[1].id)
    assert await engine.left_of("tenant-gone") == {"volumes": 2, "containers": 1}
    assert await engine.remove_all_of("tenant-gone") == 2
    assert await engine.left_of("tenant-gone") == {"volumes": 0, "containers": 0}
    assert await engine.remove_all_of("tenant-gone") == 0
    await kept.files.write("/workspace/a", b"1")
    await engine.remove(kept.id)


async def test_two_owners_have_nothing_in_common(engine: Engine) -> None:
    one, other = await asyncio.gather(engine.create(spec("same", "tenant-a")), engine.create(spec("same", "tenant-b")))
    await run(one.shell, "echo secret > /workspace/a; echo secret > /tmp/a; sleep 30 >/dev/null 2>&1 &")
    assert (await other.files.ls("/workspace")).total == 0
    assert (await other.files.ls("/tmp")).total == 0
    assert "sleep" not in text(await run(other.shell, "ps -eo args"))
    for sandbox in (one, other):
        await engine.remove(sandbox.id)


async def test_an_image_that_is_not_there_is_named_in_the_error(engine: Engine) -> None:
    with pytest.raises(ImageMissing, match="no-such-image"):
        await engine.create(spec("imageless", image="no-such-image"))


async def test_a_runtime_that_is_not_there_is_named_in_the_error(engine: Engine) -> None:
    with pytest.raises(SandboxUnavailable, match="no-such-runtime"):
        await engine.create(spec("runtimeless", runtime="no-such-runtime"))


async def test_a_creation_that_fails_or_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    instance = instance_id()
    engine = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    try:
        with pytest.raises(ImageMissing):
            await engine.create(spec(image="no-such-image"))
        for delay_s in (0.0, 0.05, 0.15):
            creating = asyncio.ensure_future(engine.create(spec()))
            await asyncio.wait({creating}, timeout=delay_s)
            creating.cancel()
            await asyncio.wait({creating})
    finally:
        await removed(engine, instance)
    assert list(tmp_path.iterdir()) == []


async def test_closing_removes_every_sandbox_and_keeps_every_workspace(tmp_path: Path) -> None:
    instance = instance_id()
    engine = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    try:
        await asyncio.gather(*(engine.create(spec(thread)) for thread in ("a", "b")))
        assert len(containers_of(instance)) == 2
        await engine.close()
        assert containers_of(instance) == []
        assert len(volumes_of(instance)) == 2
    finally:
        later = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
        await removed(later, instance)


async def test_an_engine_closed_with_its_sandboxes_kept_hands_them_to_the_next_process(tmp_path: Path) -> None:
    instance = instance_id()
    before = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    after = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    try:
        kept, unasked = [await before.create(spec(thread)) for thread in ("kept", "unasked")]
        await run(kept.shell, "echo still > /tmp/a")
        await before.close(keep_sandboxes=True)
        await before.close()  # again, which is no error and removes nothing
        assert [left.id for left in await after.reconcile()] == [unasked.id, kept.id], "the newest first"
        assert {left.id for left in await after.reconcile()} == {unasked.id, kept.id}, "until they are asked for"
        found = await after.create(spec("kept"))
        assert found.id == kept.id
        assert text(await run(found.shell, "cat /tmp/a")) == "still\n"
        await after.remove(unasked.id)
        assert await after.owned() == [kept.id]
    finally:
        await removed(after, instance)


async def test_a_new_process_takes_over_what_lives_removes_what_is_dead_and_finds_the_files(tmp_path: Path) -> None:
    instance = instance_id()
    before = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    alive, dead = [await before.create(spec(thread)) for thread in ("alive", "dead")]
    for left in (alive, dead):
        await left.files.write("/workspace/a", b"1")
    subprocess.run(["docker", "kill", f"airlock-{instance}-{dead.id}"], check=True, capture_output=True)
    kill(before)
    after = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    try:
        assert [left.id for left in await after.reconcile()] == [alive.id]
        assert await after.owned() == [alive.id]
        assert len(containers_of(instance)) == 1
        for thread in ("alive", "dead"):
            found = await after.create(spec(thread))
            assert (found.id == alive.id) == (thread == "alive")
            assert (await found.files.stat("/workspace/a")).size_bytes == 1
    finally:
        await removed(after, instance)
        await before.close()
