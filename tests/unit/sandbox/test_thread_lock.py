"""Thread locks, between open files, which stand in each other's way as processes do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.engines.docker.lock_directory import LockDirectory, Look
from sandbox.errors import SandboxUnavailable
from sandbox.thread_lock import Note, ThreadLock

OWNER = ("a" * 24, "b" * 24)
NOTE = Note("s-1", "made", "thread", "image", "runc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "x.lock"


@pytest.fixture
def locks(tmp_path: Path) -> LockDirectory:
    return LockDirectory(tmp_path, "gw_1")


def pair(path: Path) -> tuple[ThreadLock, ThreadLock]:
    return ThreadLock.open(path), ThreadLock.open(path)


def test_one_at_a_time_is_behind_the_gate(path: Path) -> None:
    one, other = pair(path)
    assert one.try_gate()
    assert not other.try_gate()
    one.leave()
    assert other.try_gate()
    other.close()
    assert one.try_gate()
    one.close()


async def test_a_waiter_has_the_gate_as_soon_as_it_opens_or_learns_that_it_does_not(path: Path) -> None:
    one, other = pair(path)
    assert one.try_gate()
    with pytest.raises(SandboxUnavailable, match="another gateway"):
        await other.gate(0.01)
    waiting = asyncio.create_task(other.gate(30))
    await asyncio.sleep(0)
    one.leave()
    await waiting
    assert not one.try_gate()
    assert one.is_shut()
    assert not other.is_shut(), "only itself is behind it"
    other.leave()
    assert not one.is_shut()


def test_a_refused_change_to_exclusive_loses_nothing(path: Path) -> None:
    one, other = pair(path)
    one.hold()
    other.hold()
    assert not one.hold_alone()
    assert not other.hold_alone(), "the first one has it still"
    one.close()
    assert other.hold_alone()


def test_a_sandbox_with_calls_in_it_is_not_unused_and_one_that_is_checked_takes_no_calls(path: Path) -> None:
    one, other = pair(path)
    assert one.begin_use()
    assert not other.unused()
    one.end_use()
    assert other.unused()
    assert not one.begin_use()
    other.leave()
    assert one.begin_use()


def test_an_open_retired_file_is_detected_before_the_next_use(path: Path) -> None:
    one, other = pair(path)
    one.retire()
    assert other.gone
    assert not other.begin_use()
    again = ThreadLock.open(path)
    assert again.begin_use()
    other.retire()
    assert path.exists(), "what has the same name by now is another's"


def test_a_note_is_read_back_and_what_is_none_is_none(path: Path) -> None:
    lock = ThreadLock.open(path)
    assert lock.read() is None
    lock.write(NOTE)
    lock.write(Note("s-2", "made"))
    assert lock.read() == Note("s-2", "made")
    path.write_text("[]", encoding="utf-8")
    assert lock.read() is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lock.close()
    lock.close()
    assert lock.read() is None


def test_what_was_not_reported_is_reported_once_and_not_while_another_is_behind_the_gate(path: Path) -> None:
    one, other = pair(path)
    assert one.take_ended_processes() == 0
    one.write(replace(NOTE, ended_processes=12))
    assert other.try_gate()
    assert one.take_ended_processes() is None
    other.leave()
    assert one.begin_use()
    assert [lock.take_ended_processes() for lock in (one, other)] == [12, 0]
    assert one.read() == NOTE
    assert (other.try_gate(), other.in_use()) == (True, True), "the gate is open, and the use goes on"
    one.retire()
    assert other.take_ended_processes() is None


def test_the_kernel_takes_the_locks_of_a_process_that_is_killed(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sandbox.thread_lock import ThreadLock\n"
        "lock = ThreadLock.open(Path(sys.argv[1])); lock.hold(); lock.begin_use(); lock.try_gate()\n"
        "print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    lock = ThreadLock.open(path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert (lock.try_gate(), lock.hold_alone(), lock.unused()) == (False, False, False)
        process.kill()
    assert (lock.try_gate(), lock.hold_alone(), lock.unused()) == (True, True, True)


async def test_the_directory_lists_owners_by_their_last_use_and_a_tenant_s_notes(locks: LockDirectory) -> None:
    assert (locks.owners(), locks.looked_at(OWNER[0])) == ([], [])
    other = ("c" * 24, "d" * 24)
    for owner, note in ((OWNER, NOTE), (other, Note("s-2", "made"))):
        lock = await locks.enter(owner)
        lock.write(note)
        lock.leave()
    stranger = await LockDirectory(Path(lock._path).parent.parent, "gw_2").enter(OWNER)
    os.utime(locks.path(OWNER), (2_000_000_000, 2_000_000_000))
    assert locks.owners() == [other, OWNER]
    assert locks.looked_at(OWNER[0]) == [Look(OWNER, NOTE, 2_000_000_000, at_work=False)]
    assert locks.has(OWNER)
    stranger.retire()


async def test_a_look_says_whether_a_sandbox_is_in_use_and_takes_nothing(locks: LockDirectory) -> None:
    lock = await locks.enter(OWNER)
    lock.write(NOTE)
    lock.hold()
    lock.leave()
    assert lock.begin_use()
    assert locks.looked_at(OWNER[0]) == [Look(OWNER, NOTE, None, at_work=False)]
    lock.end_use()
    (look,) = locks.looked_at(OWNER[0])
    assert look.idle_s is not None
    assert (lock.try_gate(), lock.unused()) == (True, True), "the look left it as it was"
    assert [look.at_work for look in locks.looked_at(OWNER[0])] == [True]
    lock.retire()


async def test_a_look_at_what_is_not_there_makes_no_file(locks: LockDirectory, tmp_path: Path) -> None:
    assert await locks.enter_existing(OWNER) is None
    assert list(tmp_path.iterdir()) == []


async def test_a_waiter_for_a_retired_file_gets_the_new_one(locks: LockDirectory) -> None:
    old = await locks.enter(OWNER)
    waiting = asyncio.create_task(locks.enter(OWNER))
    await asyncio.sleep(0)
    old.retire()
    new = await waiting
    assert not new.gone
    assert locks.try_enter(OWNER) is None
    new.retire()
    locks.close()
