"""What the watch of a workspace's disk refuses and ends, with a played line to init and a played disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from sandbox.daemon import disk_watch
from sandbox.daemon.disk_watch import DiskWatch
from sandbox.daemon.failures import Fault
from sandbox.daemon.settings import Settings
from sandbox.daemon.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

MIB = 1024 * 1024


class PlayedSpawner:
    """Tool code that lives until it is killed, and what was done to it."""

    def __init__(self) -> None:
        self.lives = False
        self.done: list[str] = []
        # What comes of holding everything: it cannot be done, or some went on while it was counted.
        self.holds = True
        self.gone_on = 0

    def live(self) -> bool:
        return self.lives

    def mark_for_disk(self, call: int | None = None) -> None:
        self.done.append("marked" if call is None else f"marked {call}")

    async def hold_everything(self) -> int:
        self.done.append("held")
        if not self.holds:
            raise TimeoutError
        return 1

    async def release(self) -> int:
        self.done.append("released")
        return self.gone_on

    async def kill_everything(self) -> int:
        self.done.append("killed")
        self.lives = False
        return 0


class Watched:
    """A watch of a directory, on a disk of which `free` is free."""

    def __init__(self, top: Path, *, reserve_bytes: int = 0, files: int = 100) -> None:
        self.top = top
        self.free = [1000 * MIB, 1_000_000]
        self.spawner = PlayedSpawner()
        settings = Settings(
            "/s", str(top), 1, 1, 2, workspace_bytes=8 * MIB, workspace_files=files, disk_reserve_bytes=reserve_bytes
        )
        self.watch = DiskWatch(cast(Spawner, self.spawner), settings)
        self.watch._disk = lambda: (self.free[0], self.free[1])  # type: ignore[method-assign]

    def write(self, name: str, size_bytes: int) -> None:
        """Write as tool code does, past everything but the disk."""
        (self.top / name).write_bytes(b"x" * size_bytes)
        self.free[0] -= size_bytes
        self.free[1] -= 1

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
    monkeypatch.setattr(disk_watch, "count_held", lambda *_: iter(()))


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


async def test_past_the_limit_everything_is_held_counted_and_killed(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch._used is not None)
    watched.write("large", 20 * MIB)
    await watched.until(lambda: "released" in watched.spawner.done)
    assert watched.spawner.done == ["held", "marked", "killed", "released"]
    assert watched.watch.used[0] >= 20 * MIB
    assert await watched.watch.refuse_start() == ""


async def test_past_the_limit_what_was_there_may_stay_and_nothing_come(watched: Watched) -> None:
    watched.write("large", 20 * MIB)
    watched.begin()
    await watched.until(lambda: watched.watch._used is not None)
    watched.write("little", 100)
    await asyncio.sleep(0)
    assert "killed" not in watched.spawner.done
    watched.write("more", 5 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)


async def test_what_others_take_of_the_disk_holds_for_a_moment_and_ends_nothing(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch._used is not None)
    watched.free[0] -= 500 * MIB
    await watched.until(lambda: "released" in watched.spawner.done)
    await watched.end()
    assert watched.spawner.done == ["held", "released"]


async def test_what_was_written_in_a_last_moment_is_known_afterwards_and_may_be_removed(watched: Watched) -> None:
    watched.begin()
    await watched.until(lambda: watched.watch._used is not None)
    watched.spawner.lives = False
    watched.write("large", 20 * MIB)
    await watched.until(lambda: watched.watch._task is None)
    assert watched.watch.used[0] >= 20 * MIB
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


async def test_a_first_count_goes_on_when_who_waited_for_it_has_gone(watched: Watched) -> None:
    async with watched.watch._counting:
        with pytest.raises(TimeoutError):
            await watched.watch.refuse_start(limit_s=0.01)
    await watched.until(lambda: watched.watch._used is not None)
    assert await watched.watch.refuse_start(limit_s=0.01) == ""


async def test_directories_above_a_file_that_are_to_be_made_count_as_well(watched: Watched) -> None:
    deep = f"{watched.top}/{'d/' * 99}"
    assert await watched.watch.admit_parents(f"{watched.top}/file")
    assert not await watched.watch.admit_parents(f"{deep}file")
    with pytest.raises(Fault, match="100 files is its limit"):
        await watched.watch.admit_directory(deep)


@pytest.mark.parametrize(
    "holds, gone_on, done", [(False, 0, ["marked", "killed", "released"]), (True, 1, ["released", "marked", "killed"])]
)
async def test_what_does_not_stay_stopped_while_it_is_counted_is_ended(
    watched: Watched, holds: bool, gone_on: int, done: list[str]
) -> None:
    watched.spawner.holds, watched.spawner.gone_on = holds, gone_on
    watched.begin()
    await watched.until(lambda: watched.watch._used is not None)
    watched.free[0] -= 500 * MIB
    await watched.until(lambda: watched.watch._task is None)
    assert watched.spawner.done == ["held", *done]


async def test_who_grew_while_the_disk_is_short_starts_nothing_before_it_made_room(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB)
    watched.watch._limit_bytes = watched.watch._allowed_bytes = 1000 * MIB
    assert await watched.watch.refuse_start() == ""
    watched.begin()
    await watched.until(lambda: watched.watch._short is not None)
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


async def test_while_the_disk_is_short_for_all_who_grows_is_ended_and_nobody_else(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reserve_bytes=1500 * MIB)
    watched.watch._limit_bytes = watched.watch._allowed_bytes = 1000 * MIB
    with pytest.raises(Fault, match="reserve"):
        await watched.watch.admit(f"{tmp_path}/file", 1)
    watched.begin()
    watched.free[0] -= 100 * MIB
    await watched.until(lambda: watched.watch._short is not None)
    assert "killed" not in watched.spawner.done
    watched.write("large", 30 * MIB)
    await watched.until(lambda: "killed" in watched.spawner.done)


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
    await watched.until(lambda: watched.watch._short is not None)
    for number in range(1_200):
        watched.write(str(number), 1)
    await watched.until(lambda: "killed" in watched.spawner.done)


async def test_without_limits_nothing_is_looked_at(tmp_path: Path) -> None:
    spawner = PlayedSpawner()
    watch = DiskWatch(cast(Spawner, spawner), Settings("/s", str(tmp_path), 1, 1, 2))
    spawner.lives = True
    watch.begin()
    await watch.admit(f"{tmp_path}/file", 2**50)
    assert (await watch.refuse_start(), watch.used, watch._task) == ("", (0, 0), None)
