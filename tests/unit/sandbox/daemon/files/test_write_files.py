"""Writing and replacing, in this process on a real directory, with and without O_TMPFILE; and files with two names."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.files import read_files, search, write_files
from sandbox.daemon.temporary_names import new_temporary_name
from sandbox.v1 import channel_pb2 as wire


async def write(path: Path, data: bytes) -> wire.Entry:
    request = wire.WriteRequest(path=str(path), data=data, inline=True)
    return (await write_files.write(request, None)).entry


async def test_writing_makes_parents_keeps_the_mode_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "a"
    entry = await write(file, b"first")
    assert (entry.size_bytes, entry.mode, entry.name) == (5, 0o644, str(file).encode())
    file.chmod(0o755)
    assert (await write(file, b"second!")).mode == 0o755
    assert file.read_bytes() == b"second!"
    assert os.listdir(file.parent) == ["a"]


async def test_a_directory_in_the_place_of_a_file_is_refused_and_nothing_left_behind(tmp_path: Path) -> None:
    with pytest.raises(Fault) as caught:
        await write(tmp_path, b"x")
    assert caught.value.kind == wire.FAILURE_KIND_IS_A_DIRECTORY
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("unnamed", [True, False], ids=["O_TMPFILE", "without"])
@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "replaced"])
async def test_a_cancelled_write_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool, old: bytes | None
) -> None:
    file = tmp_path / "sub" / "a"
    file.parent.mkdir()
    if old is not None:
        file.write_bytes(old)
    if not unnamed:
        refuse_unnamed_files(monkeypatch)
    began = asyncio.Event()

    class Never:
        async def read_piece(self) -> bytes | None:
            if began.is_set():
                await asyncio.Event().wait()
            began.set()
            return b"new"

    writing = write_files.write(wire.WriteRequest(path=str(file)), Never(), workspace=str(tmp_path))
    task = asyncio.create_task(writing)
    await began.wait()
    await asyncio.sleep(0)
    # What a killed daemon would leave at this point: nothing, or what the next one finds at the top of the workspace.
    assert os.listdir(tmp_path / "sub") == ([] if old is None else ["a"])
    assert len(os.listdir(tmp_path)) == (1 if unnamed else 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == ["sub"]
    assert os.listdir(tmp_path / "sub") == ([] if old is None else ["a"])
    assert old is None or file.read_bytes() == old


def refuse_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this file system one that has no files without a name, as gVisor's."""
    really_open = os.open

    def opened(path: str, flags: int, *arguments: int, **named: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return really_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("unnamed", [True, False], ids=["O_TMPFILE", "without"])
async def test_writes_and_edits_replace_alike_with_and_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        refuse_unnamed_files(monkeypatch)
    file = tmp_path / "sub" / "a"
    await write(file, b"one")
    file.chmod(0o6750)
    await write(file, b"two")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750  # another's rights do not pass to new content
    await write_files.edit(wire.EditRequest(path=str(file), old_text=b"two", new_text=b"three"))
    assert file.read_bytes() == b"three"
    assert os.listdir(file.parent) == ["a"]


async def test_a_target_that_appears_during_the_upload_is_replaced(tmp_path: Path) -> None:
    class Given:
        async def read_piece(self) -> bytes | None:
            if (tmp_path / "a").exists():
                return None
            (tmp_path / "a").write_bytes(b"theirs")
            return b"ours"

    await write_files.write(wire.WriteRequest(path=f"{tmp_path}/a"), Given())
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["a"]


async def test_a_daemon_that_starts_removes_what_the_last_one_left_unfinished(tmp_path: Path) -> None:
    name = new_temporary_name()
    (tmp_path / name).write_bytes(b"half")
    (tmp_path / "sub").mkdir()
    for kept in (".airlock-mine.tmp", f"{name}.bak", "a"):
        (tmp_path / kept).touch()
    write_files.remove_unfinished(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([".airlock-mine.tmp", f"{name}.bak", "a", "sub"])
    write_files.remove_unfinished(f"{tmp_path}/none")


async def test_a_file_with_two_names_is_refused_under_both_if_policy_distinguishes_paths(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("needle\n")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").write_text("needle\n")
    for name in ("a", "b"):
        path = f"{tmp_path}/{name}"
        for call in (
            read_files.read_lines(wire.ReadLinesRequest(path=path, limit=1, limit_bytes=9), one_name=True),
            read_files.read(wire.ReadRequest(path=path), None, one_name=True),
            write_files.edit(wire.EditRequest(path=path, old_text=b"n", new_text=b"m"), one_name=True),
            write_files.write(wire.WriteRequest(path=path, inline=True), None, one_name=True),
            search.grep(wire.GrepRequest(path=path, pattern="n", limit=9, timeout_ms=5000), "/x", one_name=True),
        ):
            with pytest.raises(Fault, match=r"2 names.*cp ") as caught:
                await call
            assert caught.value.kind == wire.FAILURE_KIND_PERMISSION_DENIED
    reply = (
        await search.grep(
            wire.GrepRequest(path=str(tmp_path), pattern="n", limit=9, timeout_ms=5000), "/x", one_name=True
        )
    ).grep
    assert [os.path.basename(match.path) for match in reply.matches] == [b"c"]
    assert reply.hard_linked_files == 2
    every = wire.GrepRequest(path=str(tmp_path), pattern="needle", limit=9, timeout_ms=5000)
    assert len((await search.grep(every, "/x")).grep.matches) == 3
