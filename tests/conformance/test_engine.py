"""What every Engine does alike: its sandboxes, what they keep and whose they are. engines.py has the engines."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from sandbox.engines.engine import Engine
from sandbox.engines.posture import weaknesses
from sandbox.engines.workspace_archive import Contents, WorkspaceEntry
from sandbox.errors import (
    Conflict,
    DaemonLost,
    ImageMissing,
    NotFound,
    PostureTooWeak,
    RuntimeMissing,
    SandboxBusy,
    SandboxError,
    SandboxUnavailable,
)
from sandbox.protocols import ProcessSpec, ProgramSpec
from sandbox.sandbox import Sandbox, digest, owner_of
from tests.conformance.engines import ON_CLUSTERS, Engines, engine, engines, kind, machine, only, standing
from tests.integration.sandbox.live_engine import LIMITS, run, spec, text

__all__ = [
    "engine",
    "engines",
    "kind",
    "machine",
    "standing",
]  # fixtures of this module: the file systems of this folder need Docker's only

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
_OUTER_S = 60.0


async def start(sandbox: Sandbox, process_id: str, command: str) -> None:
    """Start a background process that has stdin."""
    await sandbox.processes.start(ProcessSpec(process_id, [b"/bin/sh", b"-c", command.encode()], stdin=True))


# --- making ---


async def test_an_engine_may_be_made_ready_before_the_first_sandbox_and_again(engine: Engine) -> None:
    await engine.prepare()
    await engine.prepare()
    assert await engine.id() == await engine.id() != ""
    sandbox = await engine.create(spec("prepared"))
    assert await sandbox.ping()
    await engine.remove(sandbox.id)


async def test_a_sandbox_is_ready_when_it_is_there(engine: Engine) -> None:
    sandbox = await engine.create(spec("ready"))
    assert sandbox.spec == spec("ready")
    assert (sandbox.alive, sandbox.outdated, sandbox.take_ended_processes()) == (True, False, 0)
    assert await sandbox.ping()
    assert sandbox.id in await engine.owned()
    assert text(await run(sandbox.shell, "echo here")) == "here\n"
    await engine.remove(sandbox.id)


@only("docker", reason="the in-memory engine has no walls, and says so")
async def test_a_sandbox_reports_its_posture_and_a_weaker_one_is_refused(engine: Engine) -> None:
    sandbox = await engine.create(spec("held"))
    assert weaknesses(sandbox.posture, spec("held")) == []
    assert weaknesses(sandbox.posture, replace(spec("held"), limits=replace(LIMITS, pids=LIMITS.pids - 1)))
    assert issubclass(PostureTooWeak, SandboxUnavailable)
    await engine.remove(sandbox.id)


async def test_concurrent_and_later_calls_have_the_same_sandbox(engine: Engine) -> None:
    asked = spec("once")
    made = await asyncio.gather(*(engine.create(asked) for _ in range(3)))
    again = await engine.create(asked)
    found = await engine.find(asked)
    assert found is not None
    assert {one.id for one in (*made, again, found)} == {again.id}
    assert list(engine.owners()).count(owner_of(asked)) == 1
    await engine.remove(again.id)


async def test_what_is_not_there_is_not_found_and_looking_makes_none(engine: Engine) -> None:
    asked = spec("looked-for")
    assert not engine.has(asked)
    assert await engine.find(asked) is None
    assert owner_of(asked) not in engine.owners()
    sandbox = await engine.create(asked)
    assert engine.has(asked)
    await engine.remove(sandbox.id)
    assert not engine.has(asked)
    assert await engine.find(asked) is None


async def test_an_environment_goes_with_each_command_and_makes_no_other_sandbox(engine: Engine) -> None:
    one = await engine.create(replace(spec("environment"), env={"WORD": "first"}))
    await start(one, "p1", "exec cat")
    other = await engine.create(replace(spec("environment"), env={"WORD": "second"}))
    assert other.id == one.id
    assert text(await run(other.shell, 'echo "$WORD"')) == "second\n"
    assert [process.id for process in (await other.processes.list()).processes] == ["p1"]
    await engine.remove(other.id)


async def test_one_that_was_made_otherwise_is_replaced_and_leased_as_it_is_while_calls_are_in_progress(
    engine: Engine,
) -> None:
    first = await engine.create(spec("otherwise"))
    assert first.borrow()
    changed = replace(spec("otherwise"), limits=replace(LIMITS, pids=LIMITS.pids + 1))
    outdated = await engine.create(changed)
    assert (outdated.id, outdated.outdated, outdated.spec) == (first.id, True, changed)
    first.give_back()
    second = await engine.create(changed)
    assert (second.id != first.id, second.outdated) == (True, False)
    assert not first.alive
    await engine.remove(second.id)


@only("docker", *ON_CLUSTERS, reason="the in-memory engine has no images")
async def test_an_image_that_is_not_there_is_named_in_the_error(engine: Engine) -> None:
    with pytest.raises(ImageMissing, match="no-such-image"):
        await engine.create(spec("imageless", image="no-such-image"))


@only("docker", *ON_CLUSTERS, reason="the in-memory engine has no runtimes")
async def test_a_runtime_that_is_not_there_is_named_in_the_error(engine: Engine) -> None:
    with pytest.raises(RuntimeMissing, match="no-such-runtime"):
        await engine.create(spec("runtimeless", runtime="no-such-runtime"))


async def test_a_creation_that_is_cancelled_leaves_nothing(engines: Engines) -> None:
    engine = engines.engine()
    for delay_s in (0.0, 0.05, 0.15):
        creating = asyncio.ensure_future(engine.create(spec()))
        await asyncio.wait({creating}, timeout=delay_s)
        if not creating.cancel():
            await engine.remove(creating.result().id)
        await asyncio.wait({creating})
    await engine.close()
    later = engines.engine()
    assert await later.left_of("tenant-a") == {"volumes": len(later_files(engines)), "containers": 0}


def later_files(engines: Engines) -> list[str]:
    """Return what there is of workspaces: a creation may have got so far, and files are not removed."""
    return [name for name in engines.left() if "workspace" in name]


@only("docker", *ON_CLUSTERS, reason="no creation of the in-memory engine can fail half-way")
async def test_a_creation_that_fails_leaves_nothing(engines: Engines) -> None:
    engine = engines.engine()
    with pytest.raises(ImageMissing):
        await engine.create(spec(image="no-such-image"))
    await engine.close()
    assert engines.left() == []


# --- what is in it ---


async def test_a_background_process_outlives_the_call_that_started_it_and_not_its_sandbox(engine: Engine) -> None:
    sandbox = await engine.create(spec("background"))
    await start(sandbox, "b1", "echo up; exec cat")
    await sandbox.processes.write("b1", b"and on\n", end=True, wait_s=10)
    ended = await sandbox.processes.wait("b1", wait_s=30)
    assert (ended.outcome, ended.exit_code) == ("exited", 0)
    assert (await sandbox.processes.read("b1", offset=0, wait_s=10)).data == b"up\nand on\n"
    # That no process can write any more is known a moment after the end of the process.
    last = await sandbox.processes.read("b1", offset=10, wait_s=10)
    assert (last.data, last.end, last.size_bytes) == (b"", True, 10)
    await engine.remove(sandbox.id)
    with pytest.raises(DaemonLost):
        await sandbox.processes.list()
    again = await engine.create(spec("background"))
    assert (await again.processes.list()).processes == ()
    await engine.remove(again.id)


async def test_background_processes_are_named_once_signalled_and_removed_with_all_they_started(engine: Engine) -> None:
    sandbox = await engine.create(spec("signalled"))
    await start(sandbox, "p1", "setsid sh -c 'echo up; exec sleep 3600' & sleep 3600 & exec sleep 3600")
    assert (await sandbox.processes.read("p1", offset=0, wait_s=30)).data == b"up\n"
    with pytest.raises(Conflict):
        await start(sandbox, "p1", "true")
    ended = await sandbox.processes.signal("p1", 15)
    assert ended is not None
    ended = await sandbox.processes.wait("p1", wait_s=30)
    async with asyncio.timeout(30):
        while ended.tree > 1:  # another of its group, which has the signal too, ends when it gets to run
            ended = await sandbox.processes.wait("p1", wait_s=0)
    assert (ended.outcome, ended.signal, ended.tree) == ("signalled", 15, 1), "setsid took one out of its group"
    assert (await sandbox.processes.remove("p1")).tree == 0
    with pytest.raises(NotFound):
        await sandbox.processes.wait("p1", wait_s=0)
    assert (await sandbox.processes.list()).strays == 0
    await engine.remove(sandbox.id)


async def test_a_background_process_may_have_a_terminal_that_changes_its_size(engine: Engine) -> None:
    sandbox = await engine.create(spec("terminal"))
    await sandbox.processes.start(
        ProcessSpec(
            "t1",
            # A shell may or may not go on with what it reads after the trap: it ends with the line, and not before.
            [b"/bin/sh", b"-c", b"trap 'stty size </dev/tty' WINCH; stty size; until read line; do :; done"],
            terminal=True,
            rows=24,
            columns=80,
            stdin=True,
        )
    )
    assert (await sandbox.processes.read("t1", offset=0, wait_s=30)).data == b"24 80\r\n"
    resized = await sandbox.processes.resize("t1", 50, 132)
    assert (resized.rows, resized.columns) == (50, 132)
    await sandbox.processes.write("t1", b"\n", wait_s=10)
    assert (await sandbox.processes.wait("t1", wait_s=30)).outcome == "exited"
    assert b"50 132\r\n" in (await sandbox.processes.read("t1", offset=0)).data
    await engine.remove(sandbox.id)


async def test_what_commands_leave_behind_is_counted_and_can_be_ended(engine: Engine) -> None:
    sandbox = await engine.create(spec("strays"))
    assert (await run(sandbox.shell, "setsid sleep 3600 >/dev/null 2>&1 &")).outcome == "exited"
    assert (await sandbox.processes.list()).strays == 1
    await sandbox.processes.signal("", 9, tree=True)
    assert (await sandbox.processes.list()).strays == 0
    await engine.remove(sandbox.id)


async def test_a_program_has_streams_in_both_directions(engine: Engine) -> None:
    async def question() -> AsyncIterator[bytes]:
        yield b"quest"
        yield b"ion"

    async def take(stream: str, data: bytes) -> None:
        taken.append((stream, data))

    taken: list[tuple[str, bytes]] = []
    sandbox = await engine.create(spec("streams"))
    result = await sandbox.shell.run_program(
        ProgramSpec(
            [b"/bin/sh", b"-c", b"tr a-z A-Z; exit 5"], cwd="/workspace", timeout_s=30, output_limit_bytes=1024
        ),
        stdin=question(),
        on_output=take,
    )
    assert (result.outcome, result.exit_code, result.output_bytes) == ("exited", 5, 8)
    assert b"".join(data for _, data in taken) == b"QUESTION"
    await engine.remove(sandbox.id)


async def test_output_that_is_too_much_stays_in_the_sandbox(engine: Engine) -> None:
    sandbox = await engine.create(spec("spilled"))
    result = await sandbox.shell.execute(
        "seq 1 20000", timeout_s=30, call_id="c7", limit_chars=4000, head_chars=10, tail_chars=12
    )
    assert result.evicted is not None
    assert (result.evicted.path, result.evicted.lines) == ("/workspace/.airlock/output/c7.txt", 20_000)
    assert (text(result), result.tail[-1].data) == ("1\n2\n3\n4\n5\n", b"19999\n20000\n")
    page = await sandbox.files.read_lines(result.evicted.path, offset=19_998)
    assert page.data == b"19999\n20000\n"
    await engine.remove(sandbox.id)


async def test_files_and_commands_see_the_same_workspace(engine: Engine) -> None:
    sandbox = await engine.create(spec("same-files"))
    await sandbox.files.write("/workspace/deep/a", b"from a file call")
    assert text(await run(sandbox.shell, "cat deep/a; echo from a command > b")) == "from a file call"
    assert (await sandbox.files.read_lines("/workspace/b")).data == b"from a command\n"
    await run(sandbox.shell, "ln -s /etc way")
    with pytest.raises(SandboxError):
        await sandbox.files.stat("/workspace/way/passwd")
    await engine.remove(sandbox.id)


@pytest.mark.parametrize("left", ["cancelled", "timed out"])
async def test_nothing_is_left_of_a_call_that_is_cancelled_or_runs_out_of_time(engine: Engine, left: str) -> None:
    sandbox = await engine.create(spec("ended-early"))
    await run(sandbox.shell, "rm -f started")
    running = asyncio.ensure_future(
        run(
            sandbox.shell,
            "(setsid sleep 3600 & sleep 3600 & trap '' TERM; touch started; sleep 3600)",
            timeout_s=600 if left == "cancelled" else 1.0,
        )
    )
    if left == "cancelled":
        async with asyncio.timeout(_OUTER_S):
            while (await run(sandbox.shell, "test -e started", call_id="c2")).exit_code != 0:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
    else:
        assert (await running).outcome == "timed_out"
    async with asyncio.timeout(_OUTER_S):
        while (await sandbox.processes.list()).strays:
            await asyncio.sleep(0)
    await engine.remove(sandbox.id)


async def test_what_a_sandbox_uses_is_reported_while_it_exists(engine: Engine) -> None:
    sandbox = await engine.create(spec("used"))
    (shown,) = [one for one in await engine.listed("tenant-a") if one.id == sandbox.id]
    assert await engine.usage(shown) is not None
    await engine.remove(sandbox.id)
    assert await engine.usage(shown) is None


# --- whose it is, and what is known of it ---


async def test_what_files_take_is_what_the_disk_says_however_many_names_or_holes_they_have(engine: Engine) -> None:
    # So much that what other tests write to the same disk has nothing stopped here.
    sandbox = await engine.create(replace(spec("disk"), limits=replace(LIMITS, workspace_bytes=8 * 1024**3)))
    make = (
        "mkdir d && cd d && seq 6000 | xargs touch && head -c 3000000 /dev/zero > one && ln one two && ln one three && "
        "truncate -s 40M hole && head -c 500000 /dev/zero > $TMPDIR/other"
    )
    assert (await run(sandbox.shell, f"TMPDIR=${{TMPDIR:-/tmp}}; {make}")).exit_code == 0
    reported = await sandbox.health(count_disk=True)
    assert reported.workspace is not None
    assert reported.tmp is not None
    # The two directories, and the first may have others of its own.
    assert 6006 <= reported.workspace.files < 6012
    assert 3_000_000 <= reported.workspace.size_bytes < 3_000_000 + MIB
    assert 500_000 <= reported.tmp.size_bytes < 500_000 + MIB
    assert not reported.workspace.partial
    assert (await sandbox.health()).workspace is None
    await engine.remove(sandbox.id)


async def test_two_owners_have_nothing_in_common(engine: Engine) -> None:
    one, other = await asyncio.gather(engine.create(spec("same", "tenant-a")), engine.create(spec("same", "tenant-b")))
    await run(one.shell, "echo secret > a; sleep 30 >/dev/null 2>&1 &")
    await start(one, "p1", "exec cat")
    assert (await other.files.ls("/workspace")).total == 0
    listed = await other.processes.list()
    assert (listed.processes, listed.strays) == ((), 0)
    for sandbox in (one, other):
        await engine.remove(sandbox.id)


@only("docker", reason="programs of the in-memory engine are this machine's, and so is their /tmp")
async def test_two_owners_see_neither_each_other_s_tmp_nor_processes(engine: Engine) -> None:
    one, other = await asyncio.gather(engine.create(spec("wall", "tenant-a")), engine.create(spec("wall", "tenant-b")))
    await run(one.shell, "echo secret > /tmp/a; sleep 30 >/dev/null 2>&1 &")
    assert (await other.files.ls("/tmp")).total == 0
    assert "sleep" not in text(await run(other.shell, "ps -eo args"))
    for sandbox in (one, other):
        await engine.remove(sandbox.id)


async def test_a_tenant_s_sandboxes_are_listed_with_what_they_were_made_of(engine: Engine) -> None:
    made = [await engine.create(spec(thread, "tenant-listed")) for thread in ("b", "a")]
    other = await engine.create(spec("a", "tenant-unlisted"))
    listed = await engine.listed("tenant-listed")
    assert [one.id for one in listed] == sorted(one.id for one in made)
    assert {one.thread for one in listed} == {"a", "b"}
    assert {(one.image, one.runtime) for one in listed} == {(made[0].spec.image, "runc")}
    assert all(one.created_s > 0 for one in listed)
    for sandbox in (*made, other):
        await engine.remove(sandbox.id)
    assert await engine.listed("tenant-listed") == []


async def test_reconciling_leaves_alone_what_this_process_made(engine: Engine) -> None:
    sandbox = await engine.create(spec("mine"))
    assert sandbox.id not in [left.id for left in await engine.reconcile()]
    assert (await engine.owned())[sandbox.id], "it runs"
    assert await sandbox.ping()
    await engine.remove(sandbox.id)


# --- its end ---


async def test_a_removed_sandbox_is_gone_and_removing_it_again_is_no_error(engine: Engine) -> None:
    sandbox = await engine.create(spec("gone"))
    await engine.remove(sandbox.id)
    await engine.remove(sandbox.id)
    await engine.remove("never-was")
    assert sandbox.id not in await engine.owned()
    assert not sandbox.alive
    assert not sandbox.borrow()
    assert not await sandbox.ping()
    assert (await run(sandbox.shell, "true")).outcome == "daemon_lost"
    with pytest.raises(DaemonLost):
        await sandbox.files.ls("/workspace")


async def test_a_call_that_is_under_way_in_a_sandbox_that_is_removed_has_a_typed_outcome(engine: Engine) -> None:
    sandbox = await engine.create(spec("pulled-away"))
    running = asyncio.ensure_future(run(sandbox.shell, "touch up; sleep 3600", timeout_s=600))
    async with asyncio.timeout(_OUTER_S):
        while (await run(sandbox.shell, "test -e up", call_id="c2")).exit_code != 0:
            await asyncio.sleep(0)
    await engine.remove(sandbox.id)
    assert (await running).outcome == "daemon_lost"


async def test_stopping_a_thread_s_sandbox_does_not_wait_ends_no_call_and_can_be_done_again(engine: Engine) -> None:
    assert await engine.stop("tenant-a", "stopped") is None
    sandbox = await engine.create(spec("stopped"))
    await sandbox.files.write("/workspace/a", b"1")
    assert sandbox.borrow()
    with pytest.raises(SandboxBusy):
        await engine.stop("tenant-a", "stopped")
    assert await sandbox.ping()
    sandbox.give_back()
    stopped = await engine.stop("tenant-a", "stopped")
    assert stopped is not None
    assert (stopped.id, stopped.thread, stopped.state) == (sandbox.id, "stopped", "idle_stopped")
    assert await engine.stop("tenant-a", "stopped") == stopped
    assert engine.stopped(spec("stopped")) == sandbox.id
    assert not sandbox.borrow()
    again = await engine.create(spec("stopped"))
    assert (again.id, (await again.files.stat("/workspace/a")).size_bytes) == (sandbox.id, 1)
    await engine.remove(again.id)
    assert await engine.stop("tenant-a", "stopped") is None


async def test_removing_a_thread_s_sandbox_ends_no_call_and_takes_what_is_stopped_too(engine: Engine) -> None:
    assert await engine.remove_of("tenant-a", "unwanted") is None
    sandbox = await engine.create(spec("unwanted"))
    await sandbox.files.write("/workspace/a", b"1")
    assert sandbox.borrow()
    with pytest.raises(SandboxBusy):
        await engine.remove_of("tenant-a", "unwanted")
    sandbox.give_back()
    was = await engine.remove_of("tenant-a", "unwanted")
    assert was is not None
    assert (was.id, was.state) == (sandbox.id, "running")
    assert not sandbox.borrow()
    second = await engine.create(spec("unwanted"))
    assert (second.id != sandbox.id, (await second.files.stat("/workspace/a")).size_bytes) == (True, 1)
    assert await engine.stop_idle(second.id)
    was = await engine.remove_of("tenant-a", "unwanted")
    assert was is not None
    assert (was.id, was.state) == (second.id, "idle_stopped")
    assert await engine.remove_of("tenant-a", "unwanted") is None
    assert second.id not in await engine.owned()


async def test_sandboxes_are_listed_with_their_state_and_since_when_they_are_unused(engines: Engines) -> None:
    engine = engines.engine()
    assert await engine.listed("tenant-a") == []
    for thread in ("used", "idle", "stopped"):
        sandbox = await engine.create(spec(thread))
        assert sandbox.borrow()
        if thread != "used":
            sandbox.give_back()
    assert await engine.stop_idle(sandbox.id)
    await engine.create(spec("used", "tenant-b"))
    listed = await engine.listed("tenant-a")
    assert [one.id for one in listed] == sorted(one.id for one in listed)
    found = {one.thread: one for one in listed}
    assert {thread: one.state for thread, one in found.items()} == {
        "used": "running",
        "idle": "running",
        "stopped": "idle_stopped",
    }
    assert found["used"].since_s is None
    for thread in ("idle", "stopped"):
        since_s = found[thread].since_s
        assert since_s is not None
        assert found[thread].created_s - 1 <= since_s, "the clock of a file system may be a tick behind"
    assert engine.stopped_count() == 1


async def test_transitions_of_a_sandbox_are_reported_as_they_happen_with_the_reason(engines: Engines) -> None:
    engine = engines.engine()
    sandbox = await engine.create(spec("reported"))
    await start(sandbox, "p1", "exec cat")
    assert await engine.stop_idle(sandbox.id)
    assert (await engine.create(spec("reported"))).id == sandbox.id
    await engine.stop("tenant-a", "reported")
    await engine.create(spec("reported"))
    assert await engine.remove_of("tenant-a", "reported") is not None
    other = await engine.create(spec("reported"))
    assert await engine.stop_idle(other.id)
    assert await engine.trim_stopped(timeout_s=0, limit=9) == 1
    last = await engine.create(spec("reported"))
    await engine.close()
    states = [(one.sandbox, one.state) for one in engines.transitions if one.state != "creating"]
    assert states == [
        *(
            (sandbox.id, state)
            for state in ("running", "idle_stopped", "running", "idle_stopped", "running", "removed")
        ),
        *((other.id, state) for state in ("running", "idle_stopped", "removed")),
        *((last.id, state) for state in ("running", "removed")),
    ]
    assert {(one.tenant, one.thread, one.name) for one in engines.transitions} == {
        (*owner_of(spec("reported")), "reported")
    }
    reasons = [one.reason for one in engines.transitions if one.state in ("idle_stopped", "removed")]
    assert [reason.split(";")[0] for reason in reasons[:3]] == [*("idle", "requested", "requested")]
    assert "processes (1) ended" in reasons[0]
    started = [one.reason for one in engines.transitions if (one.sandbox, one.state) == (sandbox.id, "running")]
    assert started[1:] == ["restarted for a new request"] * 2, "by a call, or for itself"


async def test_what_a_sandbox_uses_is_known_while_it_lives_or_unknown(engine: Engine) -> None:
    sandbox = await engine.create(spec("counted", "tenant-counted"))
    (live,) = await engine.listed("tenant-counted")
    usage = await engine.usage(live)
    assert usage is not None
    assert all(value is None or value > 0 for value in (usage.cpu_s, usage.memory_bytes, usage.pids))
    await engine.remove(sandbox.id)
    assert await engine.usage(live) is None


async def test_the_calls_of_who_is_lost_are_ended_and_a_sandbox_without_any_stays(engine: Engine) -> None:
    assert not await engine.end_calls("tenant-a", "lost")
    sandbox = await engine.create(spec("lost"))
    assert not await engine.end_calls("tenant-a", "lost")
    assert sandbox.borrow()
    assert (sandbox.busy, sandbox.overdue_s) == (True, None)
    assert not await engine.end_calls("tenant-a", "lost", overdue=True)
    assert await engine.end_calls("tenant-a", "lost")
    assert not await sandbox.ping()
    assert sandbox.id not in await engine.owned()


async def test_the_one_that_was_used_longest_ago_makes_room_and_none_that_is_in_use(engines: Engines) -> None:
    engine = engines.engine()
    first, second = [await engine.create(spec(thread)) for thread in ("first", "second")]
    other = await engine.create(spec("other", "tenant-b"))
    for sandbox in (second, first, other):
        assert sandbox.borrow()
        sandbox.give_back()
        await asyncio.sleep(0.01)  # the clock of a file system ticks every 4 ms
    assert not await engine.remove_idle(digest("nobody"))
    assert await engine.remove_idle(digest("tenant-a"))
    assert set(await engine.owned()) == {first.id, other.id}
    assert first.borrow()
    assert not await engine.remove_idle(digest("tenant-a"))
    assert not await engine.remove_idle(digest("tenant-a"), stop=True)
    assert await engine.remove_idle(None)
    assert [*await engine.owned()] == [first.id]
    first.give_back()
    assert await engine.remove_idle(None, stop=True)
    assert not await engine.remove_idle(None, stop=True)
    assert (engine.stopped(spec("first")), engine.owners()) == (first.id, [])


async def test_one_that_is_idle_is_stopped_and_resumes_with_its_files_and_nothing_else(engine: Engine) -> None:
    first = await engine.create(spec("idle"))
    await first.files.write("/workspace/a", b"kept")
    await run(first.shell, 'echo lost > "${TMPDIR:-/tmp}/b"')
    await start(first, "p1", "exec cat")
    assert await engine.stop_idle(first.id)
    assert not await engine.stop_idle("never-was")
    assert not first.borrow()
    assert not engine.has(spec("idle"))
    assert await engine.find(spec("idle")) is None
    assert {one.id: one.state for one in await engine.listed("tenant-a")}[first.id] == "idle_stopped"
    assert not (await engine.owned())[first.id], "it is there and does not run"
    second = await engine.create(spec("idle"))
    assert (second.id, second.take_ended_processes(), second.take_ended_processes()) == (first.id, 1, 0)
    assert text(await run(second.shell, 'cat a "${TMPDIR:-/tmp}/b" 2>/dev/null')) == "kept"
    assert (await second.processes.list()).processes == ()
    await engine.remove(second.id)


async def test_what_ended_with_stops_is_reported_once_to_the_first_caller_however_late(engine: Engine) -> None:
    for process_id in ("p1", "p2"):
        sandbox = await engine.create(spec("ended"))
        await start(sandbox, process_id, "exec cat")
        assert await engine.stop_idle(sandbox.id)
    # What is made in the place of one that is not fit to be started has to tell, too.
    changed = replace(spec("ended"), limits=replace(LIMITS, pids=LIMITS.pids + 1))
    made = await engine.create(changed)
    assert made.id != sandbox.id
    found = await engine.find(changed)
    assert found is not None
    assert (found.take_ended_processes(), made.take_ended_processes(), found.take_ended_processes()) == (2, 0, 0)
    assert await engine.stop_idle(made.id)
    again = await engine.create(changed)
    assert (again.id, again.take_ended_processes()) == (made.id, 0)
    await engine.remove(again.id)


async def test_what_is_stopped_for_too_long_or_is_too_much_goes_and_its_files_stay(engines: Engines) -> None:
    engine = engines.engine()
    for tenant, thread in (("tenant-a", "t1"), ("tenant-b", "t2"), ("tenant-b", "t3")):
        sandbox = await engine.create(spec(thread, tenant))
        assert await engine.stop_idle(sandbox.id)
    assert await engine.trim_stopped(timeout_s=3600, limit=3) == 0
    assert await engine.trim_stopped(timeout_s=3600, limit=2) == 1
    assert (await engine.left_of("tenant-b")) == {"volumes": 2, "containers": 1}, "the tenant with the most"
    assert await engine.trim_stopped(timeout_s=0, limit=2) == 2
    assert await engine.owned() == {}
    assert await engine.left_of("tenant-a") == {"volumes": 1, "containers": 0}


async def test_closing_removes_every_sandbox_keeps_every_workspace_and_may_be_done_again(engines: Engines) -> None:
    engine = engines.engine()
    made = await asyncio.gather(*(engine.create(spec(thread)) for thread in ("a", "b")))
    assert made[0].borrow()
    await engine.close()
    await engine.close()
    assert not any([await sandbox.ping() for sandbox in made])
    later = engines.engine()
    assert await later.reconcile() == []
    assert await later.left_of("tenant-a") == {"volumes": 2, "containers": 0}


# --- its files ---


async def test_the_workspace_outlives_the_sandbox_and_nothing_else_does(engine: Engine) -> None:
    first = await engine.create(spec("outlives"))
    await run(first.shell, 'echo kept > a && echo lost > "${TMPDIR:-/tmp}/b"')
    await engine.remove(first.id)
    second = await engine.create(spec("outlives"))
    assert second.id != first.id
    assert text(await run(second.shell, 'cat a "${TMPDIR:-/tmp}/b" 2>/dev/null')) == "kept\n"
    await engine.remove(second.id)


async def test_the_workspace_is_there_for_the_next_process(engines: Engines) -> None:
    before = engines.engine()
    sandbox = await before.create(spec())
    await sandbox.files.write("/workspace/a", b"1")
    await before.close()
    after = engines.engine()
    assert await after.id() == await engines.engine().id()
    again = await after.create(spec())
    assert (await again.files.stat("/workspace/a")).size_bytes == 1


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


_DEEPEN = """\
import os
for _ in range(3000):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
open("bottom", "w").close()
"""


async def test_a_tree_deeper_than_any_path_is_saved_as_far_as_paths_go_and_removed_whole(engine: Engine) -> None:
    sandbox = await engine.create(spec("deep"))
    await sandbox.files.write("/workspace/deepen.py", _DEEPEN.encode())
    assert (await run(sandbox.shell, "python3 deepen.py")).exit_code == 0
    kinds = await engine.save_workspace(spec("deep"), lambda contents: Counter(entry.kind for entry, _ in contents))
    assert kinds is not None
    # What is left out is counted, as one for each directory where paths end.
    assert (kinds["file"], kinds["misnamed"] > 0) == (1, True)
    await engine.remove(sandbox.id)
    assert await engine.remove_workspace("tenant-a", "deep")
    assert not await engine.remove_workspace("tenant-a", "deep")


async def test_all_that_an_engine_has_of_a_tenant_goes_at_once_and_nothing_of_others(engine: Engine) -> None:
    gone = [await engine.create(spec(f"gone{n}", "tenant-gone")) for n in range(3)]
    kept = await engine.create(spec("gone0", "tenant-kept"))
    await gone[0].files.write("/workspace/a", b"1")
    assert gone[0].borrow()
    await engine.remove(gone[1].id)
    assert await engine.stop_idle(gone[2].id)
    assert await engine.left_of("tenant-gone") == {"volumes": 3, "containers": 2}
    assert await engine.remove_all_of("tenant-gone") == 3
    assert await engine.left_of("tenant-gone") == {"volumes": 0, "containers": 0}
    assert await engine.remove_all_of("tenant-gone") == 0
    assert not await gone[0].ping()
    await kept.files.write("/workspace/a", b"1")
    await engine.remove(kept.id)


async def test_every_workspace_goes_when_that_is_asked(engines: Engines) -> None:
    engine = engines.engine()
    running, stopped = [await engine.create(spec(thread)) for thread in ("a", "b")]
    await engine.remove(running.id)
    assert await engine.stop_idle(stopped.id)
    await engine.remove_workspaces()
    assert await engine.left_of("tenant-a") == {"volumes": 0, "containers": 0}


def entries(contents: Contents) -> dict[str, tuple[str, int, bytes, str]]:
    return {
        entry.path: (entry.kind, entry.mode & 0o777, b"".join(content), entry.target) for entry, content in contents
    }


async def test_a_workspace_is_saved_as_it_is_and_put_in_the_place_of_another(engine: Engine) -> None:
    sandbox = await engine.create(spec("saved"))
    await run(sandbox.shell, "mkdir -p d; echo run > d/x; chmod 750 d; chmod 755 d/x; ln -s ../d/x d/way; ln d/x twice")
    saved = await engine.save_workspace(spec("saved"), entries)
    assert saved is not None
    assert saved["d"][:2] == ("directory", 0o750)
    assert saved["d/way"][::3] == ("symlink", "../d/x")
    names = [saved[path] for path in ("d/x", "twice")]
    assert sorted(one[0] for one in names) == ["file", "hardlink"]
    assert [one[1:3] for one in names if one[0] == "file"] == [(0o755, b"run\n")]
    assert await engine.save_workspace(spec("never-saved"), entries) is None

    def give() -> Iterator[tuple[WorkspaceEntry, Iterator[bytes]]]:
        yield WorkspaceEntry("", "directory", 0o755), iter(())
        yield WorkspaceEntry("d", "directory", 0o750), iter(())
        yield WorkspaceEntry("d/y", "file", 0o640, size_bytes=6), iter((b"new", b"er\n"))
        yield WorkspaceEntry("way", "symlink", target="d/y"), iter(())
        yield WorkspaceEntry("same", "hardlink", 0o640, target="d/y"), iter(())

    assert sandbox.borrow()
    with pytest.raises(SandboxBusy):
        await engine.replace_workspace(spec("saved"), give)
    assert await sandbox.ping()
    sandbox.give_back()
    await engine.replace_workspace(spec("saved"), give)
    assert not sandbox.borrow()
    again = await engine.create(spec("saved"))
    assert text(await run(again.shell, "cat way same; ls; echo more >> d/y && stat -c %a d/y")) == (
        "newer\nnewer\nd\nsame\nway\n640\n"
    )
    await engine.remove(again.id)


async def test_a_stopped_thread_s_files_go_whole_into_another_s_whatever_is_in_them(engine: Engine) -> None:
    def kept(contents: Contents) -> list[tuple[WorkspaceEntry, bytes]]:
        found = [(entry, b"".join(content)) for entry, content in contents]
        return [(entry, data) for entry, data in found if entry.path == "" or entry.path.startswith("tree")]

    make = (
        "mkdir -p tree/a/b/c/d/e tree/empty && cd tree && head -c 3000000 /dev/urandom > large && : > nothing && "
        "echo x > 'a/with space and ünï' && echo y > 'a/b/*[x]' && echo z > a/b/c/d/e/deep && "
        "chmod 444 nothing && chmod 600 a/b/c/d/e/deep && chmod 700 a/b && touch -d @1000000000 large && "
        "ln -s /nowhere a/dangling && ln -s .. a/b/up && for n in $(seq 300); do echo $n > empty.$n; done"
    )
    source, target = [await engine.create(spec(thread)) for thread in ("whole", "copied")]
    assert (await run(source.shell, make)).exit_code == 0
    await target.files.write("/workspace/old", b"1")
    for sandbox in (source, target):
        assert await engine.stop_idle(sandbox.id)
    saved = await engine.save_workspace(spec("whole"), kept)
    assert saved is not None
    assert len(saved) > 310
    await engine.replace_workspace(spec("copied"), lambda: ((entry, iter((data,))) for entry, data in saved))
    assert engine.stopped(spec("copied")) is None, "what it was made for is not there any more"
    copied = await engine.save_workspace(spec("copied"), kept)
    assert copied is not None

    def shown(found: list[tuple[WorkspaceEntry, bytes]]) -> dict[str, tuple[object, ...]]:
        return {
            one.path: (one.kind, one.mode, one.target, data, one.modified_s if one.kind == "file" else 0)
            for one, data in found
            if one.path
        }

    assert shown(copied) == shown(saved)
    assert shown(copied)["tree/large"][4] == 1_000_000_000
    again = await engine.create(spec("copied"))
    assert again.id != target.id
    assert text(await run(again.shell, "ls; cat tree/a/b/c/d/e/deep; echo more >> tree/large && echo writable")) == (
        "tree\nz\nwritable\n"
    )
    for thread in ("whole", "copied"):
        await engine.remove_of("tenant-a", thread)


async def test_a_workspace_is_saved_or_replaced_by_one_at_a_time(engine: Engine) -> None:
    sandbox = await engine.create(spec("one-at-a-time"))
    await sandbox.files.write("/workspace/a", b"1")
    entered, go_on = threading.Event(), threading.Event()

    def take(contents: Contents) -> int:
        entered.set()
        go_on.wait(_OUTER_S)
        return len([b"".join(content) for _, content in contents])

    saving = asyncio.ensure_future(engine.save_workspace(spec("one-at-a-time"), take))
    await asyncio.to_thread(entered.wait, _OUTER_S)
    with pytest.raises(SandboxBusy):
        await engine.save_workspace(spec("one-at-a-time"), entries)
    with pytest.raises(SandboxBusy):
        await engine.replace_workspace(spec("one-at-a-time"), lambda: iter(()))
    assert text(await run(sandbox.shell, "cat a")) == "1", "calls go on meanwhile"
    go_on.set()
    assert await saving is not None
    await engine.remove(sandbox.id)


async def test_files_that_do_not_come_to_their_end_never_look_as_if_they_were_all(engine: Engine) -> None:
    sandbox = await engine.create(spec("half"))
    await run(sandbox.shell, "echo old > a")

    def give() -> Iterator[tuple[WorkspaceEntry, Iterator[bytes]]]:
        yield WorkspaceEntry("", "directory", 0o755), iter(())
        yield WorkspaceEntry("b", "file", size_bytes=3), iter((b"new",))
        raise SandboxUnavailable("no more comes")

    with pytest.raises(SandboxUnavailable):
        await engine.replace_workspace(spec("half"), give)
    again = await engine.create(spec("half"))
    assert text(await run(again.shell, "ls")) in ("", "a\n"), "none, or the old ones"
    await engine.remove(again.id)


# --- more processes than one ---

_ALONE = "sandboxes of the in-memory engine end with their process"


@only("docker", *ON_CLUSTERS, reason=_ALONE)
async def test_an_engine_closed_with_its_sandboxes_kept_hands_them_to_the_next_process(engines: Engines) -> None:
    before, after = engines.engine(), engines.engine()
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
    assert [*await after.owned()] == [kept.id]


@only("docker", *ON_CLUSTERS, reason=_ALONE)
async def test_a_new_process_takes_over_what_lives_removes_what_is_dead_and_finds_the_files(
    engines: Engines,
) -> None:
    before, after = engines.engine(), engines.engine()
    alive, dead = [await before.create(spec(thread)) for thread in ("alive", "dead")]
    for left in (alive, dead):
        await left.files.write("/workspace/a", b"1")
    engines.kill_sandbox(dead.id)
    await engines.kill(before)
    assert [left.id for left in await after.reconcile()] == [alive.id]
    assert [*await after.owned()] == [alive.id]
    for thread in ("alive", "dead"):
        found = await after.create(spec(thread))
        assert (found.id == alive.id) == (thread == "alive")
        assert (await found.files.stat("/workspace/a")).size_bytes == 1
