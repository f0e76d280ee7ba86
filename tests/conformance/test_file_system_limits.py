"""What every FileSystem does alike where it becomes large, full, odd or forbidden."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable

import pytest

from agent.filesystem import FileSystem
from sandbox.engines.local.local_fs import LocalFS
from sandbox.errors import (
    FileError,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    PermissionDenied,
    TooLarge,
)
from tests.bench.side_by_side import PeakMemory
from tests.conformance.file_systems import HOME, Inside, content, names

pytestmark = pytest.mark.asyncio(loop_scope="session")

_MIB = 1024 * 1024


def every_call(files: FileSystem, path: str) -> list[Awaitable[object]]:
    """Return one call of each method that takes a file or directory that must be there."""
    return [
        content(files, path),
        files.read_lines(path),
        files.edit(path, b"a", b"b"),
        files.ls(path),
        files.stat(path),
        files.glob(path, "*"),
        files.grep(path, "a"),
        files.remove(path),
        files.remove(path, recursive=True),
        files.rename(path, f"{HOME}/new"),
    ]


async def test_a_line_of_200_megabytes_is_paged_by_lines_and_then_by_bytes(files: FileSystem, inside: Inside) -> None:
    await inside.run(
        "printf '{\"rows\": [' > long; head -c 200000000 /dev/zero | tr '\\0' 7 >> long; printf ']}' >> long"
    )
    page = await files.read_lines(f"{HOME}/long", limit_bytes=1000)
    assert page.data == b'{"rows": [' + b"7" * 990
    assert (page.lines, page.cut, page.more, page.next_byte, page.binary) == (1, True, True, 1000, False)
    assert page.size_bytes == 200_000_012
    assert await content(files, f"{HOME}/long", offset=page.next_byte, length=10) == b"7" * 10
    assert await content(files, f"{HOME}/long", offset=page.size_bytes - 4) == b"77]}"
    with PeakMemory() as memory:
        async for piece in files.read(f"{HOME}/long", offset=page.next_byte):
            assert len(piece) <= _MIB
    assert memory.growth_bytes < 32 * _MIB
    after = await files.read_lines(f"{HOME}/long", offset=1)
    assert (after.data, after.more, after.next_byte) == (b"", False, page.size_bytes)
    (match,) = (await files.grep(HOME, "]}")).matches
    assert (match.line, match.text[-3:]) == (1, "7]}")


async def test_the_size_of_a_page_does_not_grow_with_the_line(files: FileSystem, inside: Inside) -> None:
    await inside.run("head -c 4000000 /dev/zero | tr '\\0' x > long")
    page = await files.read_lines(f"{HOME}/long", limit_bytes=_MIB)
    assert (len(page.data), page.cut, page.next_byte) == (_MIB, True, _MIB)


async def test_bytes_far_into_a_sparse_file_are_read_in_place(files: FileSystem, inside: Inside) -> None:
    await inside.run("truncate -s 3G far && printf end >> far")
    assert (await files.stat(f"{HOME}/far")).size_bytes == 3 * 1024 * _MIB + 3
    assert await content(files, f"{HOME}/far", offset=3 * 1024 * _MIB - 1) == b"\0end"
    assert await content(files, f"{HOME}/far", offset=2**31 - 1, length=2) == b"\0\0"


async def test_a_range_that_no_file_has_is_empty_or_refused(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"abc")
    assert await content(files, f"{HOME}/a", offset=2**40) == b""
    assert await content(files, f"{HOME}/a", offset=1, length=2**40) == b"bc"
    for offset, length in ((-1, None), (0, -1), (2**63, None), (0, 2**70)):
        with pytest.raises(InvalidArgument):
            await content(files, f"{HOME}/a", offset=offset, length=length)


async def test_a_file_that_shrinks_or_grows_while_it_is_read_ends_where_it_can(
    files: FileSystem, inside: Inside
) -> None:
    for command, at_most in (("truncate -s 100 a", 8 * _MIB), ("head -c 9000000 /dev/zero >> a", 8 * _MIB)):
        await files.write(f"{HOME}/a", b"x" * (8 * _MIB))
        pieces = files.read(f"{HOME}/a")
        got = len(await anext(pieces))
        await inside.run(command)
        async for piece in pieces:
            got += len(piece)
        assert 0 < got <= at_most


async def test_binary_is_reported_and_its_page_says_where_the_bytes_go_on(files: FileSystem) -> None:
    data = b"\x7fELF\0" + bytes(range(256)) * 100
    await files.write(f"{HOME}/program", data)
    page = await files.read_lines(f"{HOME}/program", limit_bytes=1000)
    assert page.binary
    assert page.data + await content(files, f"{HOME}/program", offset=page.next_byte) == data


async def test_modes_are_kept_but_not_another_s_rights(files: FileSystem, inside: Inside) -> None:
    await inside.run("touch a b && chmod 751 a && chmod 6755 b")
    for name in ("a", "b"):
        await files.write(f"{HOME}/{name}", b"text")
        await files.edit(f"{HOME}/{name}", b"text", b"other")
    assert (await inside.run("stat -c %a a b")).split() == ["751", "755"]
    await files.write(f"{HOME}/new", b"")
    assert (await inside.run("stat -c '%a %h' new")).split() == ["644", "1"]


async def test_writes_that_are_cut_short_leave_nothing_at_any_place(files: FileSystem, inside: Inside) -> None:
    await files.write(f"{HOME}/old", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (3 * _MIB)
        raise ConnectionResetError

    for path in (f"{HOME}/old", f"{HOME}/new", f"{HOME}/deep/new"):
        with pytest.raises(ConnectionResetError):
            await files.write(path, broken())
    # The daemon hears of it a moment later, but a file that is not whole has no name at any time.
    assert (await inside.run("cd .. && find . -type f")).split() == ["./case/old"]
    assert await content(files, f"{HOME}/old") == b"old"


async def test_every_method_reports_what_is_not_there(files: FileSystem) -> None:
    for call in every_call(files, f"{HOME}/none"):
        with pytest.raises(NotFound, match=f"{HOME}/none"):
            await call


async def test_every_method_reports_a_file_in_the_path(files: FileSystem) -> None:
    await files.write(f"{HOME}/file", b"a")
    path = f"{HOME}/file/below"
    for call in [*every_call(files, path), files.write(path, b""), files.mkdir(path)]:
        with pytest.raises(NotADirectory, match=f"{HOME}/file"):
            await call
    for call in (files.ls(f"{HOME}/file"), files.glob(f"{HOME}/file", "*"), files.mkdir(f"{HOME}/file")):
        with pytest.raises(NotADirectory, match=f"{HOME}/file"):
            await call


async def test_a_directory_in_place_of_a_file_is_reported(files: FileSystem) -> None:
    await files.mkdir(f"{HOME}/dir")
    await files.write(f"{HOME}/file", b"")
    for call in (
        content(files, f"{HOME}/dir"),
        files.read_lines(f"{HOME}/dir"),
        files.write(f"{HOME}/dir", b""),
        files.edit(f"{HOME}/dir", b"a", b"b"),
        files.rename(f"{HOME}/file", f"{HOME}/dir"),
    ):
        with pytest.raises(IsADirectory, match=f"{HOME}/dir"):
            await call


async def test_a_pipe_is_refused_and_blocks_no_one(files: FileSystem, inside: Inside) -> None:
    await inside.run("mkfifo pipe")
    for call in (
        content(files, f"{HOME}/pipe"),
        files.read_lines(f"{HOME}/pipe"),
        files.write(f"{HOME}/pipe", b""),
        files.edit(f"{HOME}/pipe", b"a", b"b"),
        files.grep(f"{HOME}/pipe", "a"),
    ):
        with pytest.raises(InvalidArgument, match="pipe"):
            await call
    assert (await files.grep(HOME, "a")).matches == ()
    assert (await files.stat(f"{HOME}/pipe")).type == "other"


async def test_a_socket_is_refused_as_no_regular_file(files: FileSystem, inside: Inside) -> None:
    await inside.run("""python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')" """)
    for call in (
        content(files, f"{HOME}/socket"),
        files.read_lines(f"{HOME}/socket"),
        files.write(f"{HOME}/socket", b""),
        files.edit(f"{HOME}/socket", b"a", b"b"),
        files.grep(f"{HOME}/socket", "a"),
    ):
        with pytest.raises(InvalidArgument, match="socket"):
            await call


_DEEPEN = "import os, sys; [(os.mkdir(sys.argv[1]), os.chdir(sys.argv[1])) for _ in range(int(sys.argv[2]))]"


async def test_a_tree_deeper_than_any_path_is_searched_as_far_as_paths_go_and_removed(
    files: FileSystem, inside: Inside
) -> None:
    await inside.run("echo needle > near")
    for name, levels in (("d" * 250, 300), ("e", 3_000)):
        await inside.run(f"python3 -c '{_DEEPEN}' {name} {levels} && cd {name} && echo needle > near")
        page = await files.glob(HOME, "**/*")
        assert page.unsearched == 1
        assert max(len(entry.name) for entry in page.entries) <= 4095
        found = await files.grep(HOME, "needle")
        assert ([match.path for match in found.matches], found.unsearched) == (
            [f"{HOME}/{name}/near", f"{HOME}/near"],
            1,
        )
        await files.remove(f"{HOME}/{name}", recursive=True)
        assert await names(files) == ["near"]


async def test_what_searches_do_not_reach_is_counted(files: FileSystem, inside: Inside) -> None:
    deep = "/d" * 300
    await inside.run(f"mkdir -p .{deep} && echo needle > .{deep}/file && echo needle > near")
    page = await files.grep(HOME, "needle")
    assert ([match.path for match in page.matches], page.unsearched) == ([f"{HOME}/near"], 1)
    assert (await files.glob(HOME, "**/file")).unsearched == 1
    assert (await files.glob(HOME, "*")).unsearched == 0
    await inside.run("rm -r d && mkdir closed && echo needle > locked && chmod 000 closed locked")
    try:
        # The tests run as root, who may read everything.
        hidden = 0 if isinstance(files, LocalFS) else 1
        assert (await files.grep(HOME, "needle")).unsearched == 2 * hidden
        assert (await files.glob(HOME, "**/file")).unsearched == hidden
    finally:
        await inside.run("chmod 700 closed locked")


async def test_what_the_mode_forbids_is_reported(files: FileSystem, inside: Inside) -> None:
    await inside.run("mkdir closed && echo a > closed/file && echo a > locked && chmod 400 locked && chmod 500 closed")
    try:
        for call in (files.write(f"{HOME}/locked", b""), files.edit(f"{HOME}/locked", b"a", b"b")):
            if isinstance(files, LocalFS):  # the tests run as root, who may
                await call
                continue
            with pytest.raises(PermissionDenied, match=f"{HOME}/locked"):
                await call
        if isinstance(files, LocalFS):
            return
        for call in (
            files.write(f"{HOME}/closed/new", b""),
            files.remove(f"{HOME}/closed/file"),
            files.rename(f"{HOME}/closed/file", f"{HOME}/x"),
            files.mkdir(f"{HOME}/closed/dir"),
        ):
            with pytest.raises(PermissionDenied, match=f"{HOME}/closed"):
                await call
        await inside.run("chmod 000 closed locked")
        for call in every_call(files, f"{HOME}/closed/file"):
            with pytest.raises(PermissionDenied, match=f"{HOME}/closed"):
                await call
        for call in (content(files, f"{HOME}/locked"), files.read_lines(f"{HOME}/locked"), files.ls(f"{HOME}/closed")):
            with pytest.raises(PermissionDenied):
                await call
    finally:
        await inside.run("chmod 755 closed && chmod 644 locked")


ODD = ["new\nline", "quo'te\"s", "sp ace", "-rf", "*", "[a]", "\\", "$(x)", "\u202e", "é" * 127, "n" * 255, " ", "..."]


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
async def test_names_that_are_odd_are_names(files: FileSystem, name: str) -> None:
    path = f"{HOME}/{name}"
    await files.write(path, b"text")
    assert await content(files, path) == b"text"
    assert await names(files) == [name]
    assert [match.path for match in (await files.grep(HOME, "text")).matches] == [path]
    assert [entry.name for entry in (await files.glob(HOME, "*")).entries] == [path]
    await files.rename(path, f"{path[:-1]}_")
    await files.remove(f"{path[:-1]}_")


async def test_names_that_are_too_long_are_reported(files: FileSystem) -> None:
    for path in (f"{HOME}/{'n' * 256}", f"{HOME}/{'é' * 128}", HOME + "/d" * 2100):
        with pytest.raises(InvalidPath, match="too long"):
            await files.write(path, b"")


async def test_a_directory_of_many_entries_is_listed_in_pages_that_fit_together(
    files: FileSystem, inside: Inside
) -> None:
    await inside.run("seq -f f%05.0f 1 12000 | xargs touch")
    seen: list[str] = []
    more = True
    while more:
        page = await files.ls(HOME, offset=len(seen), limit=5000)
        seen += [entry.name for entry in page.entries]
        assert page.total == 12_000
        more = page.more
    assert seen == [f"f{n:05}" for n in range(1, 12_001)]
    found = await files.glob(HOME, "f*5", limit=10_000)
    assert (len(found.entries), found.more) == (1200, False)


async def test_braces_in_a_glob_are_ordinary_characters(files: FileSystem) -> None:
    for name in ("a", "b", "{a,b}"):
        await files.write(f"{HOME}/{name}", b"")
    assert [entry.name for entry in (await files.glob(HOME, "{a,b}")).entries] == [f"{HOME}/{{a,b}}"]


async def test_an_expression_without_end_is_ended_at_its_time(files: FileSystem) -> None:
    await files.write(f"{HOME}/a", b"needle\n")
    await files.write(f"{HOME}/b", b"a" * 60 + b"!\n")
    began_s = time.monotonic()
    page = await files.grep(HOME, "needle|(a+)+$", timeout_s=0.5)
    assert time.monotonic() - began_s < 20
    assert (page.timed_out, page.more) == (True, True)
    assert [match.path for match in page.matches] == [f"{HOME}/a"]
    assert (await files.stat(f"{HOME}/a")).size_bytes == 7


async def test_what_is_larger_than_a_call_takes_is_reported(files: FileSystem, inside: Inside) -> None:
    await inside.run("truncate -s 65M a && head -c 1000000 /dev/zero > b")
    with pytest.raises(TooLarge, match="a is 68157440 bytes"):
        await files.edit(f"{HOME}/a", b"x", b"y")
    with pytest.raises(TooLarge, match="b would become"):
        await files.edit(f"{HOME}/b", b"\0", b"x" * 1000, replace_all=True)
    with pytest.raises(InvalidArgument, match="write the file instead"):
        await files.edit(f"{HOME}/a", b"x" * (512 * 1024 + 1), b"")


async def test_a_full_disk_is_reported_and_the_old_file_stays(small: tuple[FileSystem, str]) -> None:
    files, directory = small
    await files.write(f"{directory}/a", b"old")

    async def too_much() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * _MIB

    for call in (files.write(f"{directory}/a", too_much()), files.write(f"{directory}/b", b"x" * (40 * _MIB))):
        with pytest.raises(NoSpace, match="remove files"):
            await call
        assert await content(files, f"{directory}/a") == b"old"
    assert await names(files, directory) == ["a"]
    await files.write(f"{directory}/a", b"x" * (5 * _MIB))  # the room is there again


async def test_every_failure_is_an_error_of_files(files: FileSystem) -> None:
    for kind in (
        NotFound,
        NotADirectory,
        IsADirectory,
        PermissionDenied,
        NoSpace,
        TooLarge,
        InvalidPath,
        InvalidArgument,
    ):
        assert issubclass(kind, FileError)
        assert issubclass(kind, OSError)
    with pytest.raises(OSError, match="none"):
        await files.stat(f"{HOME}/none")
