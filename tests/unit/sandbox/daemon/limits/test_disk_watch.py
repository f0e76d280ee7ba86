"""What the watch of a workspace's disk refuses and ends, with a played line to init and a played disk."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.limits import disk_watch
from sandbox.daemon.limits.disk_use import DiskUse
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.limits.kernel import TERMINALS_LIMIT, KernelUse
from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

MIB = 1024 * 1024


class PlayedSpawner:
    """Tool code that lives until it is killed, and what was done to it."""

    def __init__(self) -> None:
        self.lives = False
        self.host = False
        self.done: list[str] = []
        # What comes of keeping everything: it cannot be done, or some went on while it was counted.
        self.pauses = True
        self.ran_meanwhile = 0
        # How many orders to kill everything fail before one is obeyed.
        self.failures = 0
        # What goes with those that are killed.
        self.leaves: Callable[[], None] = lambda: None

    def live(self) -> bool:
        return self.lives

    def mark_for_disk(self, call: int | None = None, *, host: bool = False) -> None:
        self.host = host
        self.done.append("marked" if call is None else f"marked {call}")

    async def pause_everything(self) -> int:
        self.done.append("paused")
        if not self.pauses:
            raise TimeoutError
        return 1

    async def resume(self) -> int:
        self.done.append("resumed")
        return self.ran_meanwhile

    def mark_for_kernel(self) -> None:
        self.done.append("marked for kernel")

    async def kill_everything(self) -> int:
        if self.failures:
            self.failures -= 1
            self.done.append("not killed")
            raise OSError(errno.ENOMEM, "no memory")
        self.done.append("killed")
        self.lives = False
        self.leaves()
        return 0

    async def kill_call(self, call: int) -> int:
        self.done.append(f"killed {call}")
        return 0


class Watched:
    """A watch of a directory, on a disk of which `free` is free."""

    def __init__(
        self,
        top: Path,
        *,
        size_bytes: int = 8 * MIB,
        files: int = 100,
        reserve_bytes: int = 0,
        kernel: KernelUse | None = None,
    ) -> None:
        self.top = top
        self.free = [1000 * MIB, 1_000_000]
        self.spawner = PlayedSpawner()
        settings = Settings(
            "/s",
            str(top),
            (1, 1, 2),
            workspace_bytes=size_bytes,
            workspace_files=files,
            disk_reserve_bytes=reserve_bytes,
        )
        self.watch = DiskWatch(cast(Spawner, self.spawner), settings, kernel)
        self.watch._disk = lambda: (self.free[0], self.free[1])  # type: ignore[method-assign]
        self.later_s = 0.0
        self.watch.ledger.clock = lambda: time.monotonic() + self.later_s

    def write(self, name: str, size_bytes: int) -> None:
        """Write as tool code does, past everything but the disk."""
        (self.top / name).write_bytes(b"x" * size_bytes)
        self.free[0] -= size_bytes
        self.free[1] -= 1

    def empty(self) -> None:
        for file in self.top.iterdir():
            file.unlink()

    async def look(self) -> None:
        """Look once, when the pause after the last count is over."""
        self.later_s += 60
        await self.watch._look()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached():
                await asyncio.sleep(0.01)

    def begin(self) -> None:
        self.spawner.lives = True
        self.watch.begin()

    async def end(self) -> None:
        self.spawner.lives = False
        await self.until(lambda: self.watch._task is None)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no processes of this machine's be looked at: a sandbox sees its own only."""
    monkeypatch.setattr(disk_watch, "count_living", lambda _: iter(()))
    monkeypatch.setattr(disk_watch, "count_unlinked", lambda *_: iter(()))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_a_file_that_does_not_fit_is_refused_before_it_is_written(watched: Watched) -> None:
    path = f"{watched.top}/file"
    await watched.watch.admit(path, 7 * MIB)
    watched.write("file", 7 * MIB)
    with pytest.raises(Fault, match="its limit") as refused:
        await watched.watch.admit(path, 2 * MIB)
    assert refused.value.kind == wire.FAILURE_KIND_NO_SPACE
    await watched.watch.admit("/somewhere/else", 100 * MIB)
    (watched.top / "file").unlink()
    await watched.watch.admit(path, 2 * MIB)


async def test_what_was_counted_in_and_not_written_is_found_to_be_none(watched: Watched) -> None:
    for _ in range(100):
        await watched.watch.admit(f"{watched.top}/file", MIB)


async def test_more_files_than_there_may_be_are_refused(watched: Watched) -> None:
    for number in range(99):
        watched.write(f"{number}", 0)
    with pytest.raises(Fault, match="100 files is its limit"):
        await watched.watch.admit(f"{watched.top}/more", 0)


async def test_past_the_limit_everything_is_paused_counted_and_killed(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.write("large", 20 * MIB)
    await watched.until(lambda: "resumed" in watched.spawner.done)
    assert watched.spawner.done == ["paused", "marked", "killed", "resumed"]
    assert not watched.spawner.host
    assert watched.watch.ledger.used[0] >= 20 * MIB
    assert await watched.watch.refuse_start() == ""
    watched.write("little", 100)
    await watched.look()
    assert watched.spawner.done.count("killed") == 1


async def test_past_the_limit_what_was_there_may_stay_and_nothing_come(watched: Watched) -> None:
    watched.write("large", 20 * MIB)
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.write("little", 100)
    await asyncio.sleep(0)
    assert "killed" not in watched.spawner.done
    watched.write("more", 5 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)


async def test_what_others_take_of_the_disk_pauses_for_a_moment_and_kills_nothing(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.free[0] -= 500 * MIB
    await watched.until(lambda: "resumed" in watched.spawner.done)
    await watched.end()
    assert watched.spawner.done == ["paused", "resumed"]


async def test_what_was_written_in_a_last_moment_is_known_afterwards_and_may_be_removed(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.spawner.lives = False
    watched.write("large", 20 * MIB)
    await watched.until(lambda: watched.watch._task is None)
    assert watched.watch.ledger.used[0] >= 20 * MIB
    watched.begin()
    await watched.end()
    assert "killed" not in watched.spawner.done


async def test_far_past_the_limit_nothing_is_started(watched: Watched) -> None:
    with (watched.top / "large").open("wb") as file:
        for _ in range(300):
            file.write(b"x" * MIB)
    with pytest.raises(Fault):
        await watched.watch.admit(f"{watched.top}/more", 1)
    assert "is its limit" in await watched.watch.refuse_start()
    with pytest.raises(Fault):
        await watched.watch.refuse_process()
    (watched.top / "large").unlink()
    assert await watched.watch.refuse_start() == ""


async def test_a_daemon_that_is_new_counts_before_it_starts_anything(watched: Watched) -> None:
    with (watched.top / "large").open("wb") as file:
        file.write(b"x" * 300 * MIB)
    assert "is its limit" in await watched.watch.refuse_start()


async def test_a_first_count_continues_when_its_caller_is_gone(watched: Watched) -> None:
    async with watched.watch.counting:
        with pytest.raises(TimeoutError):
            await watched.watch.refuse_start(limit_s=0.01)
    await watched.until(lambda: watched.watch.ledger.counted)
    assert await watched.watch.refuse_start(limit_s=0.01) == ""


async def test_directories_above_a_file_that_are_to_be_made_count_as_well(watched: Watched) -> None:
    deep = f"{watched.top}/{'d/' * 99}"
    assert await watched.watch.admit_parents(f"{watched.top}/file")
    assert not await watched.watch.admit_parents(f"{deep}file")
    with pytest.raises(Fault, match="100 files is its limit"):
        await watched.watch.admit_directory(deep)


@pytest.mark.parametrize(
    "holds, ran_meanwhile, done",
    [(False, 0, ["marked", "killed", "resumed"]), (True, 1, ["resumed", "marked", "killed"])],
)
async def test_what_does_not_stay_stopped_while_it_is_counted_is_ended(
    watched: Watched, holds: bool, ran_meanwhile: int, done: list[str]
) -> None:
    watched.spawner.pauses, watched.spawner.ran_meanwhile = holds, ran_meanwhile
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.free[0] -= 500 * MIB
    await watched.until(lambda: watched.watch._task is None)
    assert watched.spawner.done == ["paused", *done]


async def test_a_workspace_that_grew_while_the_disk_is_short_starts_nothing_before_it_shrinks(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB, size_bytes=1000 * MIB)
    assert await watched.watch.refuse_start() == ""
    watched.begin()
    await watched.until(lambda: watched.watch.ledger._floor is not None)
    watched.write("large", 30 * MIB)
    await watched.until(lambda: watched.watch._task is None)
    assert "killed" in watched.spawner.done
    assert "reserve" in await watched.watch.refuse_start()
    (tmp_path / "large").unlink()
    assert await watched.watch.refuse_start() == ""
    (tmp_path / "large").write_bytes(b"x" * 30 * MIB)
    await watched.watch._count()
    assert "reserve" in await watched.watch.refuse_start()
    watched.free[0] = 3000 * MIB
    assert await watched.watch.refuse_start() == ""


async def test_while_the_disk_is_short_only_a_growing_workspace_is_stopped(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB, size_bytes=1000 * MIB)
    with pytest.raises(Fault, match="reserve"):
        await watched.watch.admit(f"{tmp_path}/file", 1)
    watched.begin()
    watched.free[0] -= 100 * MIB
    await watched.until(lambda: watched.watch.ledger._floor is not None)
    assert "killed" not in watched.spawner.done
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert watched.spawner.host, "the workspace is within its own limit"


async def test_who_was_ended_while_the_disk_is_short_may_not_have_again_what_it_lost(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB, size_bytes=1000 * MIB)
    watched.write("before", 30 * MIB)
    await watched.look()
    watched.spawner.leaves = watched.empty
    watched.write("large", 30 * MIB)
    await watched.look()
    assert watched.spawner.done.count("killed") == 1
    watched.write("again", 30 * MIB)
    await watched.look()
    assert watched.spawner.done.count("killed") == 2


async def test_who_grew_while_the_disk_was_not_short_has_grown_by_right(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB, size_bytes=1000 * MIB)
    await watched.look()
    watched.free[0] = 5000 * MIB
    await watched.look()
    watched.write("large", 30 * MIB)
    await watched.look()
    watched.free[0] = 1000 * MIB
    await watched.look()
    assert "killed" not in watched.spawner.done


async def test_what_a_program_moves_while_it_is_counted_is_not_taken_to_be_gone(watched: Watched) -> None:
    watched.write("file", 7 * MIB)
    await watched.look()
    (watched.top / "file").unlink()
    watched.write("little", 100)
    await watched.look()
    assert "paused" not in watched.spawner.done
    assert watched.watch.ledger.used[0] >= 7 * MIB
    await watched.watch._count()
    assert watched.watch.ledger.used[0] < MIB


@pytest.mark.parametrize(
    "shrunk_mib, looks, done", [(0, [{3, 4}, {4, 5}], []), (500, [{3, 4}, {4, 5}], ["marked 4", "killed 4"])]
)
async def test_who_hides_something_for_more_than_a_moment_is_ended_once_the_disk_has_shrunk(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, shrunk_mib: int, looks: list[set[int]], done: list[str]
) -> None:
    await watched.look()
    left = iter(looks)
    monkeypatch.setattr(disk_watch, "count_unlinked", lambda _, use: iter([use.hiding.update(next(left))]))
    watched.free[0] -= shrunk_mib * MIB + 1
    await watched.look()
    assert [what for what in watched.spawner.done if what not in ("paused", "resumed")] == done


@pytest.mark.parametrize("free", [[600 * MIB, 1_000_000], [9000 * MIB, 20_000]], ids=["bytes", "files"])
async def test_below_half_of_the_reserve_no_program_is_started_in_any_sandbox(tmp_path: Path, free: list[int]) -> None:
    """Each might grow by what is let be, and there is no end of sandboxes."""
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB)
    assert await watched.watch.refuse_start() == ""
    watched.free = free
    assert "half of its reserve" in await watched.watch.refuse_start()
    with pytest.raises(Fault, match="reserve"):
        await watched.watch.admit(f"{tmp_path}/file", 1)


async def test_a_disk_that_is_short_of_files_is_short(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1, files=100_000)
    watched.free[1] = 45_000
    with pytest.raises(Fault, match="reserve"):
        await watched.watch.admit(f"{tmp_path}/file", 1)
    watched.begin()
    await watched.until(lambda: watched.watch.ledger._floor is not None)
    for number in range(1_200):
        watched.write(str(number), 1)
    await watched.until(lambda: "killed" in watched.spawner.done)


async def test_a_file_call_that_does_not_fit_pauses_tool_code_during_a_count(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.free[0] -= 7 * MIB
    await watched.until(lambda: not watched.watch.ledger.fits(2 * MIB, 1))
    await watched.watch.admit(f"{watched.top}/file", 2 * MIB)
    assert watched.spawner.done == ["paused", "resumed"]
    watched.free[0] -= 5 * MIB
    await watched.until(lambda: not watched.watch.ledger.fits(2 * MIB, 1))
    watched.spawner.pauses = False
    with pytest.raises(Fault, match="its limit"):
        await watched.watch.admit(f"{watched.top}/file", 2 * MIB)
    watched.spawner.pauses, watched.spawner.ran_meanwhile = True, 1
    with pytest.raises(Fault, match="its limit"):
        await watched.watch.admit(f"{watched.top}/file", 9 * MIB)
    assert "killed" in watched.spawner.done


async def test_what_an_unsuspected_call_hides_is_not_attributed_to_others(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watched.look()
    monkeypatch.setattr(disk_watch, "count_unlinked", lambda _, use: iter([use.hiding.add(3)]))
    watched.free[0] -= 7 * MIB
    watched.watch.ledger.look((watched.free[0], watched.free[1]))
    with pytest.raises(Fault, match=r"its limit.*cannot be inspected"):
        await watched.watch.admit(f"{watched.top}/file", 2 * MIB)


async def test_a_file_is_not_refused_for_what_a_program_hides_while_it_dies(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watched.look()
    looks = iter([{3}, {3}, {3}, {3}, set()])
    monkeypatch.setattr(disk_watch, "count_unlinked", lambda _, use: iter([use.hiding.update(next(looks))]))
    watched.free[0] -= 7 * MIB
    watched.watch.ledger.look((watched.free[0], watched.free[1]))
    await watched.watch.admit(f"{watched.top}/file", 2 * MIB)
    assert watched.spawner.done == []


async def test_a_file_that_is_in_doubt_is_refused_after_one_count_where_a_count_takes_long(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watched.look()
    counted = []

    def slowly(_: str, use: DiskUse) -> Iterator[None]:
        counted.append(watched.later_s)
        watched.later_s += 2
        use.hiding.add(3)
        return iter(())

    monkeypatch.setattr(disk_watch, "count_unlinked", slowly)
    watched.free[0] -= 7 * MIB
    watched.watch.ledger.look((watched.free[0], watched.free[1]))
    with pytest.raises(Fault, match="cannot be inspected"):
        await watched.watch.admit(f"{watched.top}/file", 2 * MIB)
    assert len(counted) == 2  # one count, which looks again at what hides


async def test_below_half_of_the_reserve_calls_that_keep_removed_files_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, size_bytes=1000 * MIB, reserve_bytes=1500 * MIB)
    monkeypatch.setattr(disk_watch, "count_unlinked", lambda _, use: iter([use.keeping.add(3)]))
    await watched.look()
    watched.free[0] = 800 * MIB
    await watched.look()
    assert "killed 3" not in watched.spawner.done
    watched.free[0] = 700 * MIB
    await watched.look()
    assert "killed 3" in watched.spawner.done


async def test_what_a_child_writes_stays_counted_in_until_a_count_can_see_it(watched: Watched) -> None:
    path = f"{watched.top}/file"
    async with watched.watch.writing(path, 5 * MIB):
        with pytest.raises(Fault, match="its limit"):
            await watched.watch.admit(path, 5 * MIB)
    await watched.watch.admit(path, 5 * MIB)
    async with watched.watch.writing("/somewhere/else", 50 * MIB):
        assert watched.watch.ledger._unseen_bytes == 0


def test_replacing_a_file_frees_its_space_if_nothing_else_has_it_open(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB)
    watched.free[0] = 1000 * MIB
    file = tmp_path / "file"
    file.write_bytes(b"x" * MIB)

    def gives_back() -> bool:
        return watched.watch.gives_back(file.stat(), MIB)

    assert (gives_back(), watched.watch.gives_back(None, 0)) == (True, False)
    with file.open("rb"):
        assert not gives_back()
    watched.free[0] = 700 * MIB
    assert not gives_back()
    watched.free[0] = 1000 * MIB
    (tmp_path / "other").hardlink_to(file)
    assert not gives_back()
    file.unlink()
    with file.open("wb") as opened:
        opened.truncate(MIB)
    assert not gives_back()


async def test_without_limits_nothing_is_looked_at(tmp_path: Path) -> None:
    spawner = PlayedSpawner()
    watch = DiskWatch(cast(Spawner, spawner), Settings("/s", str(tmp_path), (1, 1, 2)))
    spawner.lives = True
    watch.begin()
    await watch.admit(f"{tmp_path}/file", 2**50)
    assert (await watch.refuse_start(), watch.ledger.used, watch._task) == ("", (0, 0), None)


def _slow_count(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have each count of a tree wait until the event is set."""
    may_end, real = asyncio.Event(), disk_watch.count_tree

    def slowly(top: str, use: DiskUse) -> Iterator[None]:
        while not may_end.is_set():
            yield
        yield from real(top, use)

    monkeypatch.setattr(disk_watch, "count_tree", slowly)
    return may_end


async def test_a_program_that_starts_while_what_the_last_one_left_is_counted_waits_for_that_and_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path)
    assert await watched.watch.refuse_start() == ""
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.free is not None)
    may_end = _slow_count(monkeypatch)
    watched.write("first", 11 * MIB)
    watched.spawner.lives = False
    await watched.until(watched.watch._closing.locked)
    starting = asyncio.create_task(watched.watch.refuse_start())
    watched.begin()
    await asyncio.wait([starting], timeout=0.1)
    assert not starting.done()
    with pytest.raises(TimeoutError):
        await watched.watch.refuse_start(0.01)
    may_end.set()
    assert await starting == ""
    watched.write("second", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    await watched.end()


async def test_what_is_written_while_it_is_counted_at_ease_is_stopped_before_the_count_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path)
    assert await watched.watch.refuse_start() == ""
    watched.begin()
    watched.write("little", 1024)
    may_end = _slow_count(monkeypatch)
    watched.later_s += 60
    await watched.until(watched.watch.counting.locked)
    assert "paused" not in watched.spawner.done
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "paused" in watched.spawner.done)
    may_end.set()
    await watched.until(lambda: "killed" in watched.spawner.done)
    await watched.end()


async def test_refused_writes_that_come_at_once_have_it_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path)
    assert await watched.watch.refuse_start() == ""
    watched.begin()
    watched.write("large", 7 * MIB)
    watched.watch.ledger.look(watched.watch._disk())  # else the watch sees it later, and counts once more
    await watched.watch._count_paused(watched.watch._disk())
    watched.spawner.done.clear()
    may_end = _slow_count(monkeypatch)
    writes = [asyncio.create_task(watched.watch.admit(f"{tmp_path}/{name}", 4 * MIB)) for name in range(8)]
    await watched.until(watched.watch.counting.locked)
    await asyncio.sleep(0)
    may_end.set()
    refused = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in refused] == [Fault] * 8
    # Those who asked after the first count had begun are content with the second.
    assert watched.spawner.done.count("paused") <= 2
    await watched.end()


async def test_a_look_that_fails_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path)
    assert await watched.watch.refuse_start() == ""
    looked = 0
    look = watched.watch._look

    async def fails_once() -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise OSError(errno.ENOMEM, "no memory")
        await look()

    monkeypatch.setattr(watched.watch, "_look", fails_once)
    watched.begin()
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert looked > 1
    await watched.end()


class Terminals:
    """A directory of terminals, and a watch of kernel objects that counts those."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._place = place
        self.kernel = KernelUse(0, proc=str(place / "no"), terminals=str(place))

    def pass_limit(self) -> None:
        for number in range(TERMINALS_LIMIT + 1):
            (self._place / str(number)).touch()

    def close(self) -> None:
        for file in self._place.iterdir():
            file.unlink()


@pytest.fixture
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Terminals:
    return Terminals(tmp_path_factory.mktemp("dev") / "pts")


async def test_kernel_objects_past_their_limit_end_everything_during_a_count_of_the_workspace(
    tmp_path: Path, terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, kernel=terminals.kernel)
    watched.spawner.leaves = terminals.close
    may_end = _slow_count(monkeypatch)
    watched.begin()
    await watched.until(watched.watch.counting.locked)
    assert watched.spawner.done == []
    terminals.pass_limit()
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert not watched.watch.ledger.counted, "the count goes on"
    assert watched.spawner.done == ["marked for kernel", "killed"]
    may_end.set()
    await watched.end()


async def test_after_a_kill_for_kernel_objects_fails_both_limits_are_still_watched(
    tmp_path: Path, terminals: Terminals
) -> None:
    watched = Watched(tmp_path, kernel=terminals.kernel)
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.spawner.failures = 1

    def start_another() -> None:
        terminals.close()
        watched.spawner.lives = True

    watched.spawner.leaves = start_another
    terminals.pass_limit()
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert watched.spawner.done == ["marked for kernel", "not killed", "marked for kernel", "killed"]
    watched.spawner.leaves = lambda: None
    watched.spawner.done.clear()
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert "marked for kernel" not in watched.spawner.done
    await watched.end()


async def test_after_a_kill_for_the_disk_fails_the_next_look_kills(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.spawner.failures = 1
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    assert watched.spawner.done.count("not killed") == 1
    await watched.end()


async def test_kernel_objects_are_watched_for_each_program_and_not_after_the_last(
    tmp_path: Path, terminals: Terminals
) -> None:
    watched = Watched(tmp_path, kernel=terminals.kernel)
    tasks = asyncio.all_tasks()
    watched.spawner.leaves = terminals.close
    for _ in range(2):
        watched.spawner.done.clear()
        watched.begin()
        terminals.pass_limit()
        await watched.until(lambda: "killed" in watched.spawner.done)
        await watched.end()
        await watched.until(lambda: asyncio.all_tasks() == tasks)


async def test_processes_that_cannot_be_listed_are_taken_to_live(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: dict[int, int]) -> Iterator[None]:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(disk_watch, "count_living", fails)
    watched.watch.begin()
    await watched.until(lambda: watched.watch.ledger.counted)
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)
    monkeypatch.setattr(disk_watch, "count_living", lambda _: iter(()))
    await watched.end()
