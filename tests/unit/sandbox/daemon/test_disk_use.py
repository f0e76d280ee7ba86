"""Counting what a tree takes of a disk, as its owner and against its owner."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandbox.daemon import disk_use
from sandbox.daemon.disk_use import DiskUse, count_held, count_tree

MIB = 1024 * 1024


def counted(top: Path) -> DiskUse:
    use = DiskUse()
    for _ in count_tree(str(top), use):
        pass
    return use


def taken(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * disk_use.BLOCK_BYTES for path in paths)


def test_what_is_counted_is_what_the_disk_has_given(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (below / "file").write_bytes(os.urandom(MIB))
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1024 * MIB)
    (tmp_path / "link").symlink_to("/usr")
    use = counted(tmp_path)
    everything = [tmp_path, *tmp_path.rglob("*")]
    assert (use.files, use.size_bytes, use.hidden) == (len(everything), taken(*everything), False)
    assert use.size_bytes < 2 * MIB


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.write_bytes(os.urandom(MIB))
    for number in range(9):
        (tmp_path / f"{number}").hardlink_to(one)
    use = counted(tmp_path)
    assert use.files == 11
    assert use.size_bytes == pytest.approx(taken(tmp_path, one))


@pytest.mark.parametrize("depth", [disk_use._DEPTH_LIMIT - 1, disk_use._DEPTH_LIMIT, 3 * disk_use._DEPTH_LIMIT + 1])
def test_a_tree_is_counted_however_deep_it_is(tmp_path: Path, depth: int) -> None:
    home = Path.cwd()
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            Path("d").mkdir()
            os.chdir("d")
        Path("file").write_bytes(os.urandom(MIB))
    finally:
        os.chdir(home)
    open_before = len(os.listdir("/proc/self/fd"))
    use = counted(tmp_path)
    assert (use.files, use.hidden) == (depth + 2, False)
    assert use.size_bytes >= MIB
    assert len(os.listdir("/proc/self/fd")) == open_before
    shutil.rmtree(tmp_path / "d")


def test_too_many_deep_places_are_told_to_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "_DEPTH_LIMIT", 2)
    monkeypatch.setattr(disk_use, "_DEEP_LIMIT", 3)
    for number in range(5):
        (tmp_path / "a" / f"{number}").mkdir(parents=True)
    assert counted(tmp_path).hidden


def test_what_goes_while_it_is_counted_hides_nothing(tmp_path: Path) -> None:
    for number in range(3 * disk_use._TURN):
        (tmp_path / f"{number}").mkdir()
    use = DiskUse()
    for _ in count_tree(str(tmp_path), use):
        for path in tmp_path.iterdir():
            path.rmdir()
    assert not use.hidden


def test_no_link_leads_out_of_the_tree(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(MIB))
    (inside / "link").symlink_to(outside)
    assert counted(inside).size_bytes < MIB


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    use = counted(tmp_path / "nothing")
    assert (use.files, use.size_bytes, use.hidden) == (0, 0, False)


def test_processes_that_are_no_tool_code_are_not_looked_into(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, bytes(MIB))
    use = DiskUse()
    for _ in count_held(str(tmp_path), use):
        pass
    os.close(fd)
    assert (use.files, use.size_bytes, use.hiding) == (0, 0, set())
