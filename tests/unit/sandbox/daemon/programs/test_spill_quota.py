"""The books of a directory of spilled outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.daemon.programs import spill as spill_module
from sandbox.daemon.programs.spill import Spill, SpillQuotas


def spill(quotas: SpillQuotas, directory: Path, name: str, quota_bytes: int, limit_bytes: int = 1000) -> Spill:
    return Spill(f"{directory}/{name}", limit_bytes, "/none", quotas=quotas, quota_bytes=quota_bytes)


def plant(directory: Path, name: str, size: int, age_s: int) -> Path:
    path = directory / name
    path.write_bytes(bytes(size))
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_oldest_files_go_first_and_only_as_many_as_must(tmp_path: Path) -> None:
    for name, age_s in (("young", 1), ("old", 3), ("middle", 2)):
        plant(tmp_path, name, 40, age_s)
    new = spill(SpillQuotas(), tmp_path, "new", 120)
    new.write(bytes(30), 30)
    assert names(tmp_path) == ["middle", "new", "young"]
    new.write(bytes(20), 20)
    assert names(tmp_path) == ["new", "young"]
    end = new.close()
    assert (end.size_bytes, end.incomplete) == (50, False)


def test_a_directory_that_is_over_its_quota_already_is_brought_below_it(tmp_path: Path) -> None:
    for n in range(5):
        plant(tmp_path, f"f{n}", 50, age_s=n)
    spill(SpillQuotas(), tmp_path, "new", 120)
    assert names(tmp_path) == ["f0", "f1", "new"]


def test_the_smaller_of_limit_and_quota_ends_a_spill(tmp_path: Path) -> None:
    for limit_bytes, quota_bytes in ((100, 300), (300, 100)):
        one = spill(SpillQuotas(), tmp_path, "one", quota_bytes, limit_bytes)
        one.write(bytes(60), 60)
        one.write(bytes(60), 60)
        end = one.close()
        assert (end.size_bytes, end.incomplete) == (100, True)
        assert (tmp_path / "one").stat().st_size == 100


def test_open_spills_share_the_quota_and_none_takes_anothers_file(tmp_path: Path) -> None:
    quotas = SpillQuotas()
    first, second = spill(quotas, tmp_path, "first", 100), spill(quotas, tmp_path, "second", 100)
    first.write(bytes(70), 70)
    second.write(bytes(70), 70)
    assert (second.close().size_bytes, first.close().size_bytes) == (30, 70)
    third = spill(quotas, tmp_path, "third", 100)
    third.write(bytes(60), 60)
    assert not third.close().incomplete
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100


def test_a_finished_spill_is_removed_for_one_that_is_still_open(tmp_path: Path) -> None:
    quotas = SpillQuotas()
    long, short = spill(quotas, tmp_path, "long", 100), spill(quotas, tmp_path, "short", 100)
    short.write(bytes(80), 80)
    short.close()
    long.write(bytes(90), 90)
    assert names(tmp_path) == ["long"]
    assert not long.close().incomplete


def test_a_second_call_with_the_same_path_takes_the_name_and_the_first_one_leaves_it(tmp_path: Path) -> None:
    quotas = SpillQuotas()
    first = spill(quotas, tmp_path, "same", 100)
    first.write(b"a" * 60, 60)
    second = spill(quotas, tmp_path, "same", 100)
    second.write(b"b" * 60, 60)
    assert first.close().size_bytes == 60
    second.write(b"b" * 1, 1)
    third = spill(quotas, tmp_path, "third", 100)
    third.write(bytes(90), 90)
    assert (tmp_path / "same").read_bytes() == b"b" * 40
    assert third.close().size_bytes == 60


def test_links_and_directories_are_neither_followed_nor_removed_nor_counted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    plant(outside, "file", 500, age_s=9)
    directory = tmp_path / "spills"
    (directory / "folder").mkdir(parents=True)
    plant(directory / "folder", "file", 500, age_s=9)
    (directory / "link").symlink_to(outside / "file")
    (directory / "folder-link").symlink_to(outside)
    one = spill(SpillQuotas(), directory, "one", 100)
    one.write(bytes(100), 100)
    assert not one.close().incomplete
    assert names(directory) == ["folder", "folder-link", "link", "one"]
    assert (outside / "file").stat().st_size == (directory / "folder" / "file").stat().st_size == 500


def test_files_that_go_or_become_directories_meanwhile_fail_nothing(tmp_path: Path) -> None:
    quotas = SpillQuotas()
    for n in range(3):
        plant(tmp_path, f"f{n}", 30, age_s=n)
    one = spill(quotas, tmp_path, "one", 100)
    (tmp_path / "f2").unlink()
    (tmp_path / "f1").unlink()
    (tmp_path / "f1").mkdir()
    one.write(bytes(90), 90)
    assert names(tmp_path) == ["f1", "one"]
    assert one.close().size_bytes == 70  # what the directory's name stood for is still counted


def test_a_directory_with_too_many_names_takes_no_spill_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_module, "SCAN_LIMIT_NAMES", 8)
    monkeypatch.setattr(spill_module, "FILES_LIMIT", 4)
    for n in range(20):
        plant(tmp_path, f"f{n}", 0, age_s=n)
    incomplete = []
    while not incomplete or incomplete[-1]:
        one = spill(SpillQuotas(), tmp_path, "one", 100)
        one.write(b"x", 1)
        incomplete.append(one.close().incomplete)
        assert len(incomplete) < 10
    assert len(incomplete) > 1
    assert len(names(tmp_path)) <= 8


def test_the_number_of_files_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_module, "FILES_LIMIT", 4)
    quotas = SpillQuotas()
    for n in range(10):
        one = spill(quotas, tmp_path, f"f{n}", 1000)
        one.write(b"x", 1)
        os.utime(tmp_path / f"f{n}", (n, n))
        one.close()
    assert names(tmp_path) == ["f6", "f7", "f8", "f9"]


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    quotas = SpillQuotas()
    for _ in range(3):
        spill(quotas, tmp_path, "one", 100).close()
        spill(quotas, tmp_path, "two", 100).abandon()
    assert len(os.listdir("/proc/self/fd")) == before
