"""What files take, for who asks: how often and how long it is counted, by counts that are played."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.daemon.limits import disk_use
from sandbox.daemon.limits.disk_use import DiskReading, DiskUse, mounted_use


class Counts:
    """Each count finds one file more, and takes as long as is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self.takes_s = 1.0
        self.now_s = 100.0
        self.going_on = asyncio.Event()
        self.going_on.set()
        self.error: OSError | None = None
        self.reading = DiskReading(("/workspace",), asyncio.Lock(), clock=lambda: self.now_s)
        monkeypatch.setattr(disk_use, "count_tree", self._count)
        monkeypatch.setattr(disk_use, "count_unlinked", lambda *_: iter(()))

    def _count(self, _: str, use: DiskUse) -> Iterator[None]:
        while not self.going_on.is_set():
            yield
        if self.error is not None:
            raise self.error
        self.done += 1
        self.now_s += self.takes_s
        use.files = self.done

    async def read(self) -> int | None:
        (found,) = await self.reading.read()
        return None if found is None else found.files


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


async def test_it_is_counted_when_asked_and_again_only_after_a_pause_that_goes_by_what_it_took(counts: Counts) -> None:
    assert await counts.read() == 1
    counts.now_s += 8.9
    assert await counts.read() == 1
    counts.now_s += 0.2
    assert await counts.read() == 2


async def test_concurrent_callers_share_a_count(counts: Counts) -> None:
    assert await asyncio.gather(*(counts.read() for _ in range(5))) == [1] * 5


async def test_who_asks_waits_a_moment_only_and_the_next_one_has_what_was_found(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_use, "_WAIT_S", 0.01)
    counts.going_on.clear()
    assert await counts.read() is None
    counts.going_on.set()
    while not counts.done:
        await asyncio.sleep(0)
    assert await counts.read() == 1


async def test_it_waits_for_the_count_of_another_to_be_over(counts: Counts) -> None:
    async with counts.reading._counting:
        reading = asyncio.ensure_future(counts.read())
        for _ in range(5):
            await asyncio.sleep(0)
        assert counts.done == 0
    assert await reading == 1


async def test_what_cannot_be_counted_is_unknown(counts: Counts) -> None:
    counts.error = OSError(5, "the disk is gone")
    assert await counts.read() is None


async def test_what_is_there_is_counted_below_each_directory(tmp_path: Path) -> None:
    for name, size_bytes in (("one", 100_000), ("two", 300_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * size_bytes)
    reading = DiskReading((f"{tmp_path}/one", f"{tmp_path}/two", f"{tmp_path}/none"), asyncio.Lock(), unlinked=False)
    one, two, none = await reading.read()
    assert one is not None
    assert two is not None
    assert none is not None
    assert (one.files, two.files, none.files) == (2, 2, 0)
    assert 100_000 <= one.size_bytes < 300_000 <= two.size_bytes < 320_000


def test_a_separate_file_system_reports_its_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert mounted_use(f"{tmp_path}/none") is None
    state = SimpleNamespace(f_blocks=100, f_bfree=60, f_frsize=4096, f_files=50, f_ffree=47)
    monkeypatch.setattr(disk_use.os, "statvfs", lambda _: state)
    found = mounted_use("/tmp")
    assert found is not None
    assert (found.size_bytes, found.files, found.hidden) == (40 * 4096, 3, False)
