"""Counting what a tree takes of a disk, as its owner and against its owner."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.daemon.limits import disk_use
from sandbox.daemon.limits.disk_use import DiskUse, count_tree, count_unlinked, is_open_here
from sandbox.daemon.supervisor import call_tree

MIB = 1024 * 1024
really_list = os.listdir


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


def test_too_many_deep_directories_count_as_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def apart() -> Iterator[Path]:
    """A directory of a disk on which nothing else in this process has anything."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        yield Path(top)


def unlinked(top: Path) -> tuple[int, float, set[int]]:
    use = DiskUse()
    for _ in count_unlinked(str(top), use):
        pass
    return use.files, use.size_bytes, use.hiding


def test_removed_files_that_this_process_has_open_count_once(apart: Path) -> None:
    fd = os.open(apart, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, bytes(MIB))
    other = os.dup(fd)
    (apart / "directory").mkdir()
    directory = os.open(apart / "directory", os.O_PATH)
    (apart / "named").write_bytes(bytes(MIB))
    named = os.open(apart / "named", os.O_RDONLY)
    assert unlinked(apart) == (1, MIB, set())
    (apart / "directory").rmdir()
    assert unlinked(apart) == (2, MIB, set())
    for opened in (fd, other, directory, named):
        os.close(opened)
    assert unlinked(apart) == (0, 0, set())


def test_processes_that_are_no_tool_code_are_not_looked_into(apart: Path) -> None:
    program = """
import os, sys
os.write(os.open(sys.argv[1], os.O_RDWR | os.O_TMPFILE), b"x")
print(flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", program, apart], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        use = unlinked(apart)
        process.communicate(b"\n")
    assert use == (0, 0, set())


@pytest.mark.parametrize(
    "holds, is_reported",
    [
        ("kept = os.open(top, os.O_RDWR | os.O_TMPFILE)", True),
        ("os.mkfifo('f'); kept = os.open('f', os.O_RDWR); os.unlink('f')", True),
        ("kept = socket.socket(socket.AF_UNIX); kept.bind('s\\n'); os.unlink('s\\n')", True),
        ("os.mkdir('d'); os.chdir('d'); os.rmdir('../d')", True),
        ("kept = socket.socketpair()", False),
        ("kept = open('named', 'w')", False),
    ],
)
def test_calls_that_keep_more_than_is_visible_are_reported(apart: Path, holds: str, is_reported: bool) -> None:
    program = f"import os, socket\ntop = os.getcwd()\nkept = []\n{holds}\nprint(flush=True)\ninput()"
    use = DiskUse()
    with subprocess.Popen([sys.executable, "-c", program], cwd=apart, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in disk_use._UnlinkedFiles(str(apart), use).count(process.pid, 7):
            pass
        process.communicate(b"\n")
    assert (use.keeping, use.hiding) == ({7} if is_reported else set(), set())


@pytest.mark.parametrize("gvisor", [True, False])
def test_what_gvisor_never_shows_hides_nothing_and_elsewhere_it_does(
    apart: Path, monkeypatch: pytest.MonkeyPatch, gvisor: bool
) -> None:
    really_stat = os.stat

    def stat(path: object, **named: object) -> os.stat_result:
        if str(path).endswith(("/cwd", "/exe")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return really_stat(path, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(disk_use, "is_gvisor", lambda *_: gvisor)
    monkeypatch.setattr(call_tree, "call_of", lambda _: 7)
    monkeypatch.setattr(os, "listdir", lambda path: [str(os.getpid())] if path == "/proc" else really_list(path))
    monkeypatch.setattr(os, "stat", stat)
    assert unlinked(apart) == (0, 0, set() if gvisor else {7})


def test_a_file_is_open_here_until_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb"):
        assert is_open_here((tmp_path / "file").stat())
    assert not is_open_here((tmp_path / "file").stat())
