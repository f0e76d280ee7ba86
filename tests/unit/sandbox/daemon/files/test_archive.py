"""The workspace as a tar stream: whole or visibly cut short, and written nowhere but into the workspace."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.daemon.files import archive
from sandbox.engines.workspace_archive import ArchiveBroken, WorkspaceEntry, read_tar, write_tar


class Stream:
    """The two directions of a connection."""

    def __init__(self, given: bytes = b"") -> None:
        self.sent = b""
        self.read = io.BytesIO(given).read

    def write(self, data: bytes) -> int:
        self.sent += data
        return len(data)


def worked(work: Callable[[int, Any], None], root: Path, given: bytes = b"") -> bytes:
    stream, directory = Stream(given), os.open(root, os.O_RDONLY)
    try:
        work(directory, stream)
    finally:
        os.close(directory)
    return stream.sent


def filled(root: Path, *members: tuple[str, bytes, str]) -> tuple[int, str]:
    """Fill a directory with members, each a name, a type and a target; return what is said at the end."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o755
            member.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"data"))
    number, _, text = worked(archive._fill, root, data.getvalue()).decode().partition(" ")
    return int(number), text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


def test_what_is_read_out_can_be_written_elsewhere_and_is_the_same(root: Path, tmp_path: Path) -> None:
    (root / "d").mkdir(mode=0o750)
    (root / "d" / "file").write_bytes(b"x" * 700_000)
    os.utime(root / "d" / "file", (1_000_000_000, 1_000_000_000))
    os.link(root / "d" / "file", root / "twice")
    os.symlink("../elsewhere", root / "d" / "way")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"no \xff text")).write_text("odd")
    found = [(entry, b"".join(content)) for entry, content in read_tar([worked(archive._read, root)], archive.TOP)]
    kinds = {entry.path: entry.kind for entry, _ in found}
    assert kinds == {
        "": "directory",
        "d": "directory",
        "d/file": "file",
        "d/way": "symlink",
        "no \udcff text": "file",
        "pipe": "special",
        "twice": "hardlink",
    }
    kept = ((entry, iter((data,))) for entry, data in found if entry.kind != "special")
    other = tmp_path / "other"
    other.mkdir()
    assert worked(archive._fill, other, b"".join(write_tar(kept, root=archive.TOP, owner=0))) == b"0 "
    file = other / "d" / "file"
    assert (file.stat().st_nlink, file.stat().st_mtime, file.stat().st_size) == (2, 1_000_000_000, 700_000)
    assert ((other / "d").stat().st_mode & 0o777, os.readlink(other / "d" / "way")) == (0o750, "../elsewhere")


def test_a_file_that_is_truncated_meanwhile_cuts_the_stream_short(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_bytes(b"x" * 100)
    monkeypatch.setattr(archive.os, "read", lambda *_: b"")
    stream, directory = Stream(), os.open(root, os.O_RDONLY)
    with pytest.raises(OSError, match="truncated"):
        archive._read(directory, cast(Any, stream))
    os.close(directory)
    with pytest.raises(ArchiveBroken):
        _ = [b"".join(content) for _, content in read_tar([stream.sent], archive.TOP)]


@pytest.mark.parametrize(
    "name",
    ["workspace/../out", "elsewhere/a", "workspace//a", "workspace/./a", "/workspace/a", "workspace/a/../../out"],
)
def test_a_name_that_is_not_in_the_workspace_is_refused(root: Path, name: str) -> None:
    number, text = filled(root, (name, tarfile.REGTYPE, ""))
    assert (number, "is no path in a workspace" in text) == (errno.EINVAL, True)
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.parametrize(
    "last", [("workspace/way/a", tarfile.REGTYPE, ""), ("workspace/a", tarfile.LNKTYPE, "workspace/way/secret")]
)
def test_nothing_is_made_or_linked_through_a_symbolic_link(root: Path, last: tuple[str, bytes, str]) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    number, _ = filled(root, ("workspace/way", tarfile.SYMTYPE, str(outside)), last)
    assert number != 0
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert not (root / "a").exists()


def test_devices_and_pipes_are_refused_and_a_stream_that_is_cut_short_is_no_success(root: Path) -> None:
    assert filled(root, ("workspace/p", tarfile.FIFOTYPE, ""))[0] == errno.EINVAL
    entry = WorkspaceEntry("a", "file", size_bytes=600_000)
    whole = b"".join(write_tar(iter([(entry, iter((b"x" * 600_000,)))]), root=archive.TOP, owner=0))
    assert not worked(archive._fill, root, whole[:300_000]).startswith(b"0 ")
