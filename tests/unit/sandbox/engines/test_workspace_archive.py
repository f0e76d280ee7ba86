"""Tar streams of a workspace: what goes in comes out, and what tool code may have made of it does no harm."""

from __future__ import annotations

import asyncio
import io
import itertools
import tarfile
import threading
from collections.abc import Iterator

import pytest

from sandbox.engines.workspace_archive import (
    ArchiveBroken,
    Contents,
    Passing,
    WorkspaceEntry,
    read_tar,
    streamed,
    write_tar,
)

_TREE = {
    WorkspaceEntry("", "directory", 0o755, 1_700_000_000): b"",
    WorkspaceEntry("src", "directory", 0o700, 1_700_000_001): b"",
    WorkspaceEntry("src/" + "long/" * 40 + "name", "file", 0o640, 1_700_000_002, 3_000_000): b"abc" * 1_000_000,
    WorkspaceEntry("src/\udcff\udcfe ümlaut\nline", "file", 0o600, 5, 2): b"hi",
    WorkspaceEntry("empty", "file", 0o444, 0, 0): b"",
    WorkspaceEntry("link", "symlink", 0o777, 7, 0, "/usr/bin/\udcffpython3"): b"",
    WorkspaceEntry("again", "hardlink", 0o600, 5, 0, "src/\udcff\udcfe ümlaut\nline"): b"",
}


def contents(tree: dict[WorkspaceEntry, bytes]) -> Contents:
    for entry, data in tree.items():
        yield entry, iter([data] if data else [])


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def member(
    name: str, type_: bytes = tarfile.REGTYPE, size: int = 0, mode: int = 0o644, target: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.linkname = type_, size, mode, target
    return info


def in_pieces(data: bytes, size: int = 777) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def test_what_is_written_is_read_again_byte_for_byte_whatever_it_is_called() -> None:
    stream = b"".join(write_tar(contents(_TREE), root="workspace", owner=600_000_002))
    found = {entry: b"".join(content) for entry, content in read_tar(in_pieces(stream), "workspace")}
    assert found == _TREE


def test_everything_belongs_to_the_given_user_without_setuid_setgid_and_sticky() -> None:
    tree = {WorkspaceEntry("su", "file", 0o6755, 1, 1): b"x", WorkspaceEntry("d", "directory", 0o1777): b""}
    stream = b"".join(write_tar(contents(tree), root="workspace", owner=600_000_002))
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        assert [(one.mode, one.uid, one.gid) for one in archive] == [
            (0o755, 600_000_002, 600_000_002),
            (0o777, 600_000_002, 600_000_002),
        ]


@pytest.mark.parametrize("end", [1, 512, 1024, 1536, 2000])
def test_a_stream_that_ends_early_is_no_workspace(end: int) -> None:
    stream = b"".join(write_tar(contents(_TREE), root="workspace", owner=1))
    with pytest.raises(ArchiveBroken):
        for _, content in read_tar(in_pieces(stream[:-end]), "workspace"):
            for _ in content:
                pass


@pytest.mark.parametrize("length", [4096, 512 + 8192])
def test_a_file_of_zeros_does_not_look_like_the_end(length: int) -> None:
    tree = {WorkspaceEntry("z", "file", 0o600, 0, 8192): bytes(8192)}
    stream = b"".join(write_tar(contents(tree), root="w", owner=1))
    with pytest.raises(ArchiveBroken):
        for _, content in read_tar(in_pieces(stream[:length]), "w"):
            for _ in content:
                pass


def test_nothing_at_all_is_no_workspace() -> None:
    with pytest.raises(ArchiveBroken):
        list(read_tar(iter([]), "workspace"))


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (length, key, value)


def test_what_a_docker_engine_says_before_a_member_is_read_and_of_it_what_a_workspace_has() -> None:
    path, target = b"workspace/" + b"\xff\n=" * 1200, b"/" * 4095
    said = record(b"SCHILY.xattr.security.capability", b"\x01\0\0\x02\n=" + bytes(14)) + record(b"gid", b"600000002")
    said += record(b"linkpath", target) + record(b"path", path) + record(b"uid", b"600000002")
    size = record(b"path", b"workspace/large") + record(b"size", b"700") + record(b"mtime", b"7.9")
    stream = tar(
        (member("././@PaxHeader", tarfile.XHDTYPE, len(said)), said),
        (member("workspace/cut", tarfile.SYMTYPE, target="cut"), b""),
        (member("././@PaxHeader", tarfile.XHDTYPE, len(size)), size),
        (member("workspace/cut", size=700), b"x" * 700),
    )
    found = [(entry, b"".join(content)) for entry, content in read_tar(in_pieces(stream), "workspace")]
    name = path.removeprefix(b"workspace/").decode("utf-8", "surrogateescape")
    assert found == [
        (WorkspaceEntry(name, "symlink", target=target.decode()), b""),
        (WorkspaceEntry("large", "file", modified_s=7, size_bytes=700), b"x" * 700),
    ]


def test_devices_and_names_outside_of_the_workspace_are_distinguished() -> None:
    stream = tar(
        (member("workspace/pipe", tarfile.FIFOTYPE), b""),
        (member("workspace/disk", tarfile.BLKTYPE), b""),
        (member("workspace/../etc/passwd", size=1), b"x"),
        (member("/workspace/a", size=1), b"x"),
        (member("elsewhere/a", size=1), b"x"),
        (member("workspace/h", tarfile.LNKTYPE, target="../etc/shadow"), b""),
        (member("workspace/./ok", size=1, mode=0o4755), b"y"),
    )
    found = [(entry.path, entry.kind, entry.mode) for entry, _ in read_tar([stream], "workspace")]
    assert found == [
        ("pipe", "special", 0o644),
        ("disk", "special", 0o644),
        ("workspace/../etc/passwd", "misnamed", 0o644),
        ("/workspace/a", "misnamed", 0o644),
        ("elsewhere/a", "misnamed", 0o644),
        ("workspace/h", "misnamed", 0o644),
        ("ok", "file", 0o4755),
    ]


def test_a_directory_whose_entries_may_have_no_path_counts_as_something_left_out() -> None:
    near, far = "n" * 200, "/".join(["d" * 199] * 18)
    stream = tar(*((member(f"workspace/{path}", tarfile.DIRTYPE), b"") for path in (near, far)))
    found = [(entry.path, entry.kind) for entry, _ in read_tar([stream], "workspace")]
    assert found == [(near, "directory"), (far, "directory"), (far, "misnamed")]


def test_content_that_is_shorter_than_it_says_is_not_sent_on() -> None:
    tree = {WorkspaceEntry("a", "file", 0o600, 0, 10): b"short"}
    with pytest.raises(ArchiveBroken):
        list(write_tar(contents(tree), root="workspace", owner=1))


async def test_a_cancelled_caller_waits_until_what_it_streams_has_stopped() -> None:
    begun = threading.Event()
    failures: list[ArchiveBroken] = []

    def work(passing: Passing) -> None:
        try:
            for _ in passing(itertools.repeat(b"x")):
                begun.set()
        except ArchiveBroken as error:
            failures.append(error)
            raise

    streaming = asyncio.create_task(streamed(work, lambda work: asyncio.ensure_future(asyncio.to_thread(work))))
    await asyncio.to_thread(begun.wait)
    streaming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await streaming
    assert [str(error) for error in failures] == ["every caller that waited for these files has given up"]
