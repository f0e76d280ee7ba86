"""What every FileSystem does alike: LocalFS on a directory, RemoteFS through a daemon in a container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.filesystem import FileSystem
from sandbox.engines.local.local_fs import LocalFS
from sandbox.errors import (
    Conflict,
    FileError,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
)
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Sandbox
from tests.conformance.file_systems import HOME, content, names
from tests.integration.sandbox.live_engine import run

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_is_written_is_read_back_byte_by_byte(files: FileSystem) -> None:
    data = bytes(range(256)) * 20
    entry = await files.write(f"{HOME}/a.bin", data)
    assert (entry.name, entry.type, entry.size_bytes) == (f"{HOME}/a.bin", "file", len(data))
    assert await content(files, f"{HOME}/a.bin") == data
    assert await content(files, f"{HOME}/a.bin", offset=250, length=10) == data[250:260]
    assert await content(files, f"{HOME}/a.bin", offset=len(data) - 3) == data[-3:]
    assert await content(files, f"{HOME}/a.bin", offset=len(data) + 5) == b""
    assert await content(files, f"{HOME}/a.bin", length=0) == b""


async def test_an_empty_file_is_a_file(files: FileSystem) -> None:
    await files.write(f"{HOME}/empty", b"")
    assert (await files.stat(f"{HOME}/empty")).size_bytes == 0
    assert await content(files, f"{HOME}/empty") == b""
    page = await files.read_lines(f"{HOME}/empty")
    assert (page.data, page.lines, page.more, page.cut) == (b"", 0, False, False)


async def test_a_file_larger_than_any_frame_goes_and_comes_in_pieces(files: FileSystem) -> None:
    data = b"0123456789abcdef" * (5 * 65536)  # 5 MiB
    await files.write(f"{HOME}/large", data)
    pieces = [piece async for piece in files.read(f"{HOME}/large")]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 1024 * 1024
    assert await content(files, f"{HOME}/large", offset=1, length=3_000_000) == data[1:3_000_001]


async def test_a_write_takes_its_bytes_from_a_stream(files: FileSystem) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number * 100_000

    await files.write(f"{HOME}/streamed", pieces())
    assert await content(files, f"{HOME}/streamed") == b"".join(b"%d" % number * 100_000 for number in range(10))


async def test_a_write_whose_source_fails_leaves_the_old_file_and_nothing_beside_it(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError, match="client went away"):
        await files.write(f"{HOME}/a", broken())
    # The sandbox hears of it a moment later; what a caller sees is the old content at any time.
    assert await content(files, f"{HOME}/a") == b"old"


async def test_a_write_makes_the_directories_above(files: FileSystem) -> None:
    await files.write(f"{HOME}/x/y/z", b"1")
    assert await names(files, f"{HOME}/x") == ["y"]


async def test_a_write_replaces_and_leaves_nothing_beside_it(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"first")
    await files.write(f"{HOME}/a", b"second")
    assert await content(files, f"{HOME}/a") == b"second"
    assert await names(files) == ["a"]


async def test_ls_pages_in_the_order_of_names(files: FileSystem) -> None:
    for name in ("b", "a", "c"):
        await files.write(f"{HOME}/{name}", b"")
    await files.mkdir(f"{HOME}/d")
    page = await files.ls(HOME, offset=1, limit=2)
    assert [entry.name for entry in page.entries] == ["b", "c"]
    assert (page.total, page.more) == (4, True)
    last = await files.ls(HOME, offset=3, limit=2)
    assert [(entry.name, entry.type) for entry in last.entries] == [("d", "directory")]
    assert not last.more


async def test_a_link_is_listed_and_described_but_never_followed(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"here")
    assert (await files.stat(f"{WORKSPACE}/way")).type == "symlink"
    assert [entry.type for entry in (await files.ls(WORKSPACE)).entries] == ["directory", "symlink"]
    for refused in (
        content(files, f"{WORKSPACE}/way/a"),
        files.ls(f"{WORKSPACE}/way"),
        files.write(f"{WORKSPACE}/way/b", b""),
        files.write(f"{WORKSPACE}/way", b""),
        files.mkdir(f"{WORKSPACE}/way/c"),
        files.read_lines(f"{WORKSPACE}/way/a"),
        files.edit(f"{WORKSPACE}/way/a", b"here", b"there"),
        files.rename(f"{WORKSPACE}/way/a", f"{HOME}/b"),
        files.remove(f"{WORKSPACE}/way/a"),
    ):
        with pytest.raises(InvalidPath, match=HOME):  # it says where the link leads
            await refused
    assert await names(files) == ["a"]


async def test_removing_a_link_leaves_what_it_leads_to(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"here")
    await files.remove(f"{WORKSPACE}/way", recursive=True)
    assert await names(files, WORKSPACE) == ["case"]
    assert await names(files) == ["a"]


async def test_read_lines_pages_by_lines(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"one\ntwo\r\nthree\nfour")
    page = await files.read_lines(f"{HOME}/a", offset=1, limit=2)
    assert (page.data, page.lines, page.more, page.size_bytes) == (b"two\r\nthree\n", 2, True, 19)
    assert page.next_byte == len(b"one\ntwo\r\nthree\n")
    rest = await files.read_lines(f"{HOME}/a", offset=3)
    assert (rest.data, rest.lines, rest.more, rest.cut) == (b"four", 1, False, False)
    assert (await files.read_lines(f"{HOME}/a", offset=9)).lines == 0


async def test_a_line_longer_than_the_page_is_cut_between_characters_and_says_where_it_goes_on(
    files: FileSystem,
) -> None:
    await files.write(f"{HOME}/a", "é".encode() * 100)
    page = await files.read_lines(f"{HOME}/a", limit_bytes=51)
    assert page.data == "é".encode() * 25
    assert (page.cut, page.more, page.next_byte) == (True, True, 50)


async def test_bytes_that_are_no_text_are_called_so(files: FileSystem) -> None:
    await files.write(f"{HOME}/nul", b"a\0b\n")
    await files.write(f"{HOME}/latin", b"caf\xe9\n")
    await files.write(f"{HOME}/text", "café\n".encode())
    assert [(await files.read_lines(f"{HOME}/{name}")).binary for name in ("nul", "latin", "text")] == [
        True,
        True,
        False,
    ]


async def test_edit_replaces_the_first_match_and_counts_the_others(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"x = 1\nx = 1\nx = 1\n")
    result = await files.edit(f"{HOME}/a", b"x = 1", b"y = 2")
    assert (result.replaced, result.left) == (1, 2)
    assert await content(files, f"{HOME}/a") == b"y = 2\nx = 1\nx = 1\n"
    result = await files.edit(f"{HOME}/a", b"x = 1", b"", replace_all=True)
    assert (result.replaced, result.left) == (2, 0)
    assert await content(files, f"{HOME}/a") == b"y = 2\n\n\n"


async def test_edit_of_text_that_is_not_there_changes_nothing(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"abc")
    result = await files.edit(f"{HOME}/a", b"zzz", b"y")
    assert (result.replaced, result.left) == (0, 0)
    assert await content(files, f"{HOME}/a") == b"abc"


async def test_edit_works_on_bytes(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"\xff\x00\xfe")
    assert (await files.edit(f"{HOME}/a", b"\x00", b"\r\n")).replaced == 1
    assert await content(files, f"{HOME}/a") == b"\xff\r\n\xfe"


async def test_glob_finds_by_pattern_at_any_depth_and_follows_no_link(files: FileSystem) -> None:
    for name in ("a.py", "b.txt", "x/c.py", "x/y/d.py", ".hidden.py"):
        await files.write(f"{HOME}/{name}", b"")

    async def found(pattern: str, path: str = HOME) -> list[str]:
        return [entry.name.removeprefix(f"{HOME}/") for entry in (await files.glob(path, pattern)).entries]

    assert sorted(await found("*.py")) == [".hidden.py", "a.py"]
    assert sorted(await found("**/*.py")) == [".hidden.py", "a.py", "x/c.py", "x/y/d.py"]
    assert await found("x/*.py") == ["x/c.py"]
    assert await found("?.txt") == ["b.txt"]
    assert await found("nothing*") == []
    assert not [name for name in await found("**/*.py", WORKSPACE) if "way" in name]


async def test_glob_pages(files: FileSystem) -> None:
    for name in ("a", "b", "c"):
        await files.write(f"{HOME}/{name}", b"")
    page = await files.glob(HOME, "*", offset=1, limit=1)
    assert [entry.name for entry in page.entries] == [f"{HOME}/b"]
    assert page.more
    assert not (await files.glob(HOME, "*", offset=2, limit=1)).more


async def test_grep_finds_lines_and_counts_what_it_cannot_read(files: FileSystem) -> None:
    await files.write(f"{HOME}/a.py", b"def one():\n    pass\ndef two():\n")
    await files.write(f"{HOME}/b.txt", b"def three\n")
    await files.write(f"{HOME}/c.bin", b"def \0 four\n")
    page = await files.grep(HOME, r"def \w+")
    assert [(match.path, match.line, match.text) for match in page.matches] == [
        (f"{HOME}/a.py", 1, "def one():"),
        (f"{HOME}/a.py", 3, "def two():"),
        (f"{HOME}/b.txt", 1, "def three"),
    ]
    assert (page.more, page.timed_out, page.binary_files) == (False, False, 1)
    assert len((await files.grep(HOME, "def", include="*.py")).matches) == 2
    assert len((await files.grep(f"{HOME}/b.txt", "def")).matches) == 1
    first = await files.grep(HOME, "def", offset=1, limit=1)
    assert [match.line for match in first.matches] == [3]
    assert first.more


async def test_a_matching_line_of_any_length_is_shown_around_the_match(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"x" * 100_000 + b"needle" + b"y" * 100_000)
    (match,) = (await files.grep(HOME, "needle")).matches
    assert "needle" in match.text
    assert len(match.text) <= 1000


async def test_searches_skip_evicted_output_unless_they_start_inside_it(files: FileSystem) -> None:
    await files.write(f"{WORKSPACE}/.airlock/output/c1.txt", b"needle\n")
    assert (await files.grep(WORKSPACE, "needle")).matches == ()
    assert (await files.glob(WORKSPACE, "**/*.txt")).entries == ()
    assert len((await files.grep(f"{WORKSPACE}/.airlock/output", "needle")).matches) == 1
    await files.remove(f"{WORKSPACE}/.airlock", recursive=True)


async def test_directories_are_made_renamed_and_removed(files: FileSystem) -> None:
    await files.mkdir(f"{HOME}/a/b")
    await files.mkdir(f"{HOME}/a/b")
    await files.write(f"{HOME}/a/b/file", b"1")
    await files.rename(f"{HOME}/a", f"{HOME}/c")
    assert await content(files, f"{HOME}/c/b/file") == b"1"
    with pytest.raises(Conflict, match="not empty"):
        await files.remove(f"{HOME}/c")
    await files.remove(f"{HOME}/c", recursive=True)
    assert await names(files) == []


async def test_a_rename_replaces_a_file(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"1")
    await files.write(f"{HOME}/b", b"2")
    await files.rename(f"{HOME}/a", f"{HOME}/b")
    assert await content(files, f"{HOME}/b") == b"1"
    assert await names(files) == ["b"]


async def test_each_failure_is_an_error_of_its_kind_that_names_the_path(files: FileSystem) -> None:
    await files.write(f"{HOME}/file", b"")
    cases = [
        (NotFound, content(files, f"{HOME}/none")),
        (NotFound, files.stat(f"{HOME}/none")),
        (NotFound, files.ls(f"{HOME}/none")),
        (NotFound, files.remove(f"{HOME}/none")),
        (NotFound, files.edit(f"{HOME}/none", b"a", b"b")),
        (NotFound, files.rename(f"{HOME}/none", f"{HOME}/x")),
        (NotFound, files.glob(f"{HOME}/none", "*")),
        (NotFound, files.grep(f"{HOME}/none", "x")),
        (IsADirectory, content(files, HOME)),
        (IsADirectory, files.read_lines(HOME)),
        (IsADirectory, files.write(HOME, b"")),
        (NotADirectory, files.ls(f"{HOME}/file")),
        (NotADirectory, files.stat(f"{HOME}/file/x")),
        (NotADirectory, files.mkdir(f"{HOME}/file")),
    ]
    for kind, call in cases:
        with pytest.raises(kind, match=HOME) as raised:
            await call
        assert isinstance(raised.value, FileError)
        assert isinstance(raised.value, OSError)


async def test_arguments_that_make_no_sense_are_refused(files: FileSystem) -> None:
    await files.write(f"{HOME}/file", b"abc")
    for call in (
        files.edit(f"{HOME}/file", b"", b"x"),
        files.grep(HOME, "("),
        files.grep(HOME, ""),
        files.glob(HOME, "/etc/*"),
        files.glob(HOME, "../*"),
        files.ls(HOME, limit=0),
        files.read_lines(f"{HOME}/file", limit_bytes=0),
    ):
        with pytest.raises(InvalidArgument):
            await call
    for path in ("relative", f"{HOME}/../x", f"{HOME}/a\0b", f"{HOME}/\udcff"):
        with pytest.raises(InvalidPath):
            await files.stat(path)


async def test_a_name_that_is_not_utf_8_is_listed(files: FileSystem, tmp_path: Path, shared: Sandbox) -> None:
    if isinstance(files, LocalFS):
        (tmp_path / "case" / "caf\udce9").write_bytes(b"")
    else:
        await run(shared.shell, f"printf '' > {HOME}/$(printf 'caf\\351')")
    assert await names(files) == ["caf\udce9"]
    assert [entry.name for entry in (await files.glob(HOME, "*")).entries] == [f"{HOME}/caf\udce9"]


async def test_what_the_user_may_not_write_is_refused(files: FileSystem) -> None:
    if isinstance(files, LocalFS):
        with pytest.raises(NotFound, match=WORKSPACE):  # a rooted LocalFS has nothing outside
            await files.write("/etc/x", b"")
        return
    with pytest.raises(PermissionDenied):
        await files.write("/etc/x", b"")
