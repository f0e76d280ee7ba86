"""Workspaces saved from a Docker engine and put into it as a whole, with what tool code may have left in them."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable

import pytest

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.container_config import carrier_name
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.workspace_archive import ArchiveBroken, Contents, WorkspaceEntry
from sandbox.errors import (
    EngineUnavailable,
    NoSpace,
    SandboxBusy,
    SandboxError,
    SandboxUnavailable,
    TooLarge,
    WorkspaceIncomplete,
)
from sandbox.sandbox import owner_of
from tests.docker_state import volumes_of
from tests.integration.sandbox.live_engine import LIMITS, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
Tree = dict[WorkspaceEntry, bytes]


def tree_of(contents: Contents) -> Tree:
    return {entry: b"".join(content) for entry, content in contents}


async def _carriers(engine: DockerEngine) -> int:
    return len(await engine._parts.containers.of_kind("carrier"))


def giving(tree: Tree) -> Callable[[], Contents]:
    return lambda: ((entry, iter([data] if data else [])) for entry, data in tree.items())


async def test_files_go_from_one_thread_into_another_and_belong_to_its_tool_user(engine: DockerEngine) -> None:
    source = await engine.create(spec("from"))
    made = await run(
        source.shell,
        "mkdir -p d/e && printf abc > d/e/f && chmod 640 d/e/f && ln d/e/f d/twin && ln -s /etc/passwd link"
        " && mkfifo pipe && cp /bin/true su && chmod 4755 su && printf x > \"$(printf 'odd\\377\\nname')\""
        " && far=d/$(printf %0240d/ $(seq 12)) && mkdir -p $far && printf long > ${far}é && ln -s /${far}é d/far"
        " && chmod 700 d",
    )
    assert made.exit_code == 0, text(made)
    tree = await engine.save_workspace(spec("from"), tree_of)
    assert tree is not None
    by_path = {entry.path: entry for entry in tree}
    assert by_path["pipe"].kind == "special"
    assert by_path["su"].mode == 0o4755
    assert by_path["link"].target == "/etc/passwd"
    assert {by_path["d/e/f"].kind, by_path["d/twin"].kind} == {"file", "hardlink"}
    target = await engine.create(spec("to"))
    await run(target.shell, "touch old")
    await engine.replace_workspace(spec("to"), giving({one: data for one, data in tree.items() if one.path != "pipe"}))
    assert not target.borrow()
    await engine.remove(target.id)
    again = await engine.create(spec("to"))
    looked = "ls -b; stat -c %a,%u d d/e/f su; id -u; cat d/twin; echo; stat -c %h d/twin; readlink link"
    looked += "; cat .$(readlink d/far); echo; echo x >> su"
    *listed, d, f, su, user, abc, names, link, far = text(await run(again.shell, looked)).splitlines()
    assert listed == ["d", "link", "odd\\377\\nname", "su"]
    assert [d, f, su] == [f"700,{user}", f"640,{user}", f"755,{user}"]
    assert (abc, names, link, far) == ("abc", "2", "/etc/passwd", "long")
    await engine.remove(source.id)
    await engine.remove(again.id)


async def test_a_thread_without_files_has_nothing_to_be_saved_and_gets_none_by_that(engine: DockerEngine) -> None:
    instance = engine.instance
    before = volumes_of(instance)
    assert await engine.save_workspace(spec("never"), tree_of) is None
    assert volumes_of(instance) == before


async def test_a_workspace_in_use_is_not_replaced(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("used"))
    await run(sandbox.shell, "touch mine")
    assert sandbox.borrow()
    with pytest.raises(SandboxBusy):
        await engine.replace_workspace(spec("used"), giving({}))
    sandbox.give_back()
    assert text(await run(sandbox.shell, "ls")) == "mine\n"
    await engine.remove(sandbox.id)


async def test_a_restore_that_would_not_leave_the_reserve_costs_nothing_of_what_is_there(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("short"))
    await run(sandbox.shell, "touch old")
    # More than any disk has, but for what is not known to be coming.
    for reserve_bytes, size_bytes in ((2**60, 0), (1, 2**60)):
        limits = dataclasses.replace(LIMITS, disk_reserve_bytes=reserve_bytes)
        short = dataclasses.replace(spec("short"), limits=limits)
        with pytest.raises(NoSpace, match="reserve"):
            await engine.replace_workspace(short, giving({}), size_bytes=size_bytes)
    assert text(await run(sandbox.shell, "ls")) == "old\n"
    await engine.remove(sandbox.id)


async def test_one_tenant_s_streams_leave_room_for_another_s_however_many_there_are(engine: DockerEngine) -> None:
    going_on, begun = threading.Event(), asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def slow() -> Contents:
        loop.call_soon_threadsafe(begun.put_nowait, "a")
        assert going_on.wait(60)
        yield WorkspaceEntry("", "directory", 0o755), iter(())

    many = [asyncio.create_task(engine.replace_workspace(spec(f"many{one}"), slow)) for one in range(4)]
    try:
        await begun.get()
        other = spec("one", tenant="tenant-b")
        async with asyncio.timeout(50):
            await engine.replace_workspace(other, giving({WorkspaceEntry("x", "file", 0o600, 0, 1): b"x"}))
            assert await engine.save_workspace(other, tree_of)
        assert not any(one.done() for one in many)
    finally:
        going_on.set()
        ended = await asyncio.gather(*many, return_exceptions=True)
    assert ended == [None] * 4


async def test_what_breaks_off_leaves_no_half_of_it(engine: DockerEngine) -> None:
    def broken() -> Contents:
        yield WorkspaceEntry("half", "file", 0o600, 0, 2), iter([b"ab"])
        raise LookupError("gone")

    sandbox = await engine.create(spec("broken"))
    await run(sandbox.shell, "touch old")
    before = volumes_of(engine.instance)
    with pytest.raises(LookupError, match="gone"):
        await engine.replace_workspace(spec("broken"), broken)
    assert volumes_of(engine.instance) == before
    assert sandbox.alive
    assert text(await run(sandbox.shell, "ls")) == "old\n"
    await engine.remove(sandbox.id)


@pytest.mark.parametrize(
    "fault, claimed",
    [
        pytest.param(EngineUnavailable("timed out"), False, id="timeout-own-volume"),
        pytest.param(EngineUnavailable("timed out"), True, id="timeout-claimed-volume"),
        pytest.param(SandboxUnavailable("409: in use"), True, id="409-claimed-volume"),
    ],
)
async def test_whichever_request_fails_a_restore_keeps_the_old_files_or_says_that_they_may_be_gone(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, fault: SandboxError, claimed: bool
) -> None:
    """Each request that makes or removes a volume fails in turn; after a timeout the engine may have done it."""
    new = giving({WorkspaceEntry("new", "file", 0o600, 0, 1): b"x"})
    seen, before = set[str](), volumes_of(engine.instance)
    for number in range(12):
        for done in (False, True) if isinstance(fault, EngineUnavailable) else (False,):
            thread = f"fault-{claimed}-{type(fault).__name__}-{number}-{done}"
            sandbox = await engine.create(spec(thread))
            if claimed:
                await engine.replace_workspace(spec(thread), giving({}))
                sandbox = await engine.create(spec(thread))
            await run(sandbox.shell, "touch old")
            with monkeypatch.context() as patched:
                asked = _failing(patched, number, fault, done=done)
                try:
                    await engine.replace_workspace(spec(thread), new)
                    said = "done"
                except WorkspaceIncomplete:
                    said = "incomplete"
                except SandboxError:
                    said = "refused"
            tree = await engine.save_workspace(spec(thread), tree_of)
            names = {entry.path for entry in tree or ()} - {""}
            assert {"done": {"new"}, "refused": {"old"}}.get(said, names) == names, (said, number, done)
            seen.add(said)
            # Whatever it was, a second restore brings the files, and a deletion leaves nothing.
            await engine.replace_workspace(spec(thread), new)
            again = await engine.save_workspace(spec(thread), tree_of) or {}
            assert {entry.path: data for entry, data in again.items() if entry.path} == {"new": b"x"}
            assert await engine.remove_workspace("tenant-a", thread)
        if len(asked) <= number:
            break
    assert seen >= {"done", "incomplete"}
    await engine.reconcile()
    assert volumes_of(engine.instance) == before


def _failing(patched: pytest.MonkeyPatch, number: int, fault: SandboxError, *, done: bool) -> list[str]:
    """Have the request of this number fail, of those that make or remove volumes; return all that were made."""
    asked: list[str] = []

    def failing(name: str) -> Callable[..., object]:
        real = getattr(docker_requests, name)

        def request(*args: object, **more: object) -> object:
            asked.append(name)
            if len(asked) - 1 != number:
                return real(*args, **more)
            if done:
                real(*args, **more)
            raise fault

        return request

    for name in ("remove_volume", "make_volume"):
        patched.setattr(docker_requests, name, failing(name))
    return asked


async def test_a_deletion_that_the_engine_fails_at_says_whether_files_may_be_gone(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await engine.create(spec("undeleted"))
    await run(sandbox.shell, "touch old")
    await engine.remove(sandbox.id)
    with monkeypatch.context() as patched:
        _failing(patched, 0, EngineUnavailable("timed out"), done=False)
        with pytest.raises(WorkspaceIncomplete):
            await engine.remove_workspace("tenant-a", "undeleted")
    # One that is refused once is tried again.
    with monkeypatch.context() as patched:
        asked = _failing(patched, 0, SandboxUnavailable("409: in use"), done=False)
        assert await engine.remove_workspace("tenant-a", "undeleted")
    assert asked.count("remove_volume") == 2


async def test_a_save_that_ends_early_says_why_at_once_and_delays_no_one(engine: DockerEngine) -> None:
    """An engine that writes to no sandbox keeps the container that it reads, even if its removal is requested."""
    mib = 1024 * 1024
    large = dataclasses.replace(spec("ends-early"), limits=dataclasses.replace(LIMITS, workspace_bytes=8192 * mib))
    sandbox = await engine.create(large)
    # More than any socket holds.
    assert (await run(sandbox.shell, f"head -c {100 * mib} /dev/zero > big")).exit_code == 0

    def refused(contents: Contents) -> None:
        for entry, content in contents:
            if entry.kind == "file":
                next(content)
                raise TooLarge("too much")

    async with asyncio.timeout(50):
        for _ in range(2):
            with pytest.raises(TooLarge, match="too much"):
                await engine.save_workspace(large, refused)
        sizes = await engine.save_workspace(large, lambda contents: [sum(map(len, piece)) for _, piece in contents])
    assert sizes == [0, 100 * mib]
    assert await _carriers(engine) == 0
    await engine.remove(sandbox.id)


async def test_what_clears_up_after_a_stream_does_not_replace_what_it_ended_with(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await engine.create(spec("unclear"))
    await engine.remove(sandbox.id)
    removed: list[str] = []

    def refused(client: docker_requests.Client, name: str) -> None:
        removed.append(threading.current_thread().name)
        raise SandboxUnavailable("it is stuck")

    def broken(_: Contents) -> None:
        raise LookupError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(docker_requests, "remove_container", refused)
        with pytest.raises(LookupError, match="gone"):
            await engine.save_workspace(spec("unclear"), broken)
    assert await _carriers(engine) == 1
    # In the threads of streams, of which no tenant has all: no other tenant waits where an engine is stuck with one.
    assert all("stream" in name for name in removed)
    assert await engine.save_workspace(spec("unclear"), tree_of)
    assert await _carriers(engine) == 0


async def test_a_restore_that_breaks_off_says_why_at_once(engine: DockerEngine) -> None:
    mib = 1024 * 1024

    def broken() -> Contents:
        yield WorkspaceEntry("half", "file", 0o600, 0, 200 * mib), (bytes(mib) for _ in range(100))
        raise AssertionError("unreachable")

    large = dataclasses.replace(spec("ends"), limits=dataclasses.replace(LIMITS, workspace_bytes=256 * mib))
    async with asyncio.timeout(50):
        with pytest.raises(ArchiveBroken, match="came with"):
            await engine.replace_workspace(large, broken)
        await engine.replace_workspace(large, giving({WorkspaceEntry("x", "file", 0o600, 0, 1): b"x"}))
        assert await engine.save_workspace(large, tree_of)


async def test_files_are_gone_before_their_volume_is_removed_but_not_those_that_are_in_use(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine makes no volume for anybody while it removes one with files in it."""
    sandbox = await engine.create(spec("full"))
    await run(sandbox.shell, "mkdir -p d/e && touch a d/e/b .c && ln -s / link")
    with pytest.raises(SandboxUnavailable, match="in use"):
        await engine.remove_workspace("tenant-a", "full")
    assert text(await run(sandbox.shell, "ls -A | wc -l")) == "4\n"
    await engine.remove(sandbox.id)

    def refused(client: docker_requests.Client, name: str) -> bool:
        raise SandboxUnavailable(f"{name} stays")

    with monkeypatch.context() as patched:
        patched.setattr(docker_requests, "remove_volume", refused)
        with pytest.raises(WorkspaceIncomplete, match="stays"):
            await engine.remove_workspace("tenant-a", "full")
    assert await _carriers(engine) == 0
    emptied = await engine.save_workspace(spec("full"), tree_of)
    assert emptied is not None
    assert [entry.path for entry in emptied] == [""]
    assert await engine.remove_workspace("tenant-a", "full")
    assert not await engine.remove_workspace("tenant-a", "full")


async def test_a_volume_that_the_engine_cannot_empty_is_emptied_by_a_program(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine needs a descriptor for each level of a tree, and no tree here may be deeper than it has of those."""
    sandbox = await engine.create(spec("too-deep"))
    made = "mkdir -p $(printf 'd/%.0s' $(seq 900)) closed/in && touch closed/in/a && chmod 000 closed/in closed"
    assert (await run(sandbox.shell, made)).exit_code == 0
    await engine.remove(sandbox.id)

    def refused(*_: object, **__: object) -> bool:
        raise SandboxUnavailable("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(engine._parts.requests, "put_archive", refused)
        patched.setattr(docker_requests, "remove_volume", refused)
        with pytest.raises(WorkspaceIncomplete, match="too many open files"):
            await engine.remove_workspace("tenant-a", "too-deep")
    assert await _carriers(engine) == 0
    emptied = await engine.save_workspace(spec("too-deep"), tree_of)
    assert emptied is not None
    assert [entry.path for entry in emptied] == [""]
    assert await engine.remove_workspace("tenant-a", "too-deep")


async def test_one_saves_at_a_time_and_who_gives_up_leaves_nothing(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("slow"))
    await run(sandbox.shell, "head -c 20000000 /dev/zero > big")
    reading, going_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(contents: Contents) -> Tree:
        loop.call_soon_threadsafe(reading.set)
        asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result()
        return tree_of(contents)

    saving = asyncio.create_task(engine.save_workspace(spec("slow"), slow))
    await reading.wait()
    with pytest.raises(SandboxBusy):
        await engine.save_workspace(spec("slow"), tree_of)
    saving.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert await _carriers(engine) == 0
    assert await engine.save_workspace(spec("slow"), tree_of) is not None
    await engine.remove(sandbox.id)


async def test_what_a_process_left_that_died_is_removed_by_the_next(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("left"))
    await engine.remove(sandbox.id)
    carrying = engine._reconciliation.transfer.carrier(spec("left"), "")
    await carrying.__aenter__()
    assert await _carriers(engine) == 1
    await engine.reconcile()
    assert await _carriers(engine) == 0
    again = engine._reconciliation.transfer.carrier(spec("left"), "")
    await again.__aenter__()
    assert await engine.remove_workspace("tenant-a", "left")
    # One that had no container yet, and one that is at work.
    names = [carrier_name(engine.instance, owner_of(spec(thread))) for thread in ("left", "held")]
    carriers = engine._reconciliation.transfer
    left, held = (carriers.locks.try_enter(name) for name in names)
    assert left is not None
    assert held is not None
    left.close()
    await engine.reconcile()
    assert [path.name for path in carriers.locks.directory.iterdir()] == [f"{names[1]}.lock"]
    held.retire()
    await engine.reconcile()
    assert not carriers.locks.directory.exists()


async def test_an_idle_stopped_sandbox_is_gone_when_its_files_are_replaced(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("asleep"))
    await run(sandbox.shell, "touch old")
    assert await engine.stop_idle(sandbox.id)
    tree = await engine.save_workspace(spec("asleep"), tree_of)
    assert tree is not None
    assert {entry.path for entry in tree} == {"", "old"}
    await engine.replace_workspace(spec("asleep"), giving({WorkspaceEntry("new", "file", 0o600, 0, 0): b""}))
    assert engine.stopped(spec("asleep")) is None
    again = await engine.create(spec("asleep"))
    assert (again.id != sandbox.id, again.take_ended_processes()) == (True, 0)
    assert text(await run(again.shell, "ls")) == "new\n"
    await engine.remove(again.id)


async def test_a_workspace_that_tool_code_had_closed_lets_its_sandbox_in_after_a_restore(engine: DockerEngine) -> None:
    tree = {WorkspaceEntry("", "directory", 0o000): b"", WorkspaceEntry("a", "file", 0o600, 0, 1): b"x"}
    await engine.replace_workspace(spec("closed"), giving(tree))
    sandbox = await engine.create(spec("closed"))
    assert text(await run(sandbox.shell, "cat a; stat -c %a .")) == "x711\n"
    await engine.remove(sandbox.id)
