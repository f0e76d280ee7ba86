"""The file operations, in this process on a real directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.files import read_files, search, tree_files, write_files
from sandbox.daemon.files.slow_work import Emit, work_in_child
from sandbox.v1 import channel_pb2 as wire


async def lines(path: Path, offset: int = 0, limit: int = 10, limit_bytes: int = 1000) -> wire.ReadLinesReply:
    request = wire.ReadLinesRequest(path=str(path), offset=offset, limit=limit, limit_bytes=limit_bytes)
    return (await read_files.read_lines(request)).read_lines


async def write(path: Path, data: bytes) -> wire.Entry:
    request = wire.WriteRequest(path=str(path), data=data, inline=True)
    return (await write_files.write(request, None)).entry


async def glob(path: Path, pattern: str, offset: int = 0, limit: int = 1000, workspace: str = "/x") -> list[str]:
    request = wire.GlobRequest(path=str(path), pattern=pattern, offset=offset, limit=limit)
    reply = (await search.glob(request, workspace)).entries
    return [os.fsdecode(entry.name) for entry in reply.entries]


async def grep(path: Path, pattern: str, workspace: str = "/x", **fields: object) -> wire.GrepReply:
    fields = {"limit": 100, "timeout_ms": 5000} | fields
    return (await search.grep(wire.GrepRequest(path=str(path), pattern=pattern, **fields), workspace)).grep


async def test_lines_are_paged_with_their_ends(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\r\ntwo\nthree")
    page = await lines(file, 1, 1)
    assert (page.data, page.lines, page.more, page.cut, page.next_byte) == (b"two\n", 1, True, False, 9)
    page = await lines(file, 2, 5)
    assert (page.data, page.lines, page.more, page.next_byte, page.size_bytes) == (b"three", 1, False, 14, 14)
    page = await lines(file, 9, 5)
    assert (page.data, page.lines, page.more, page.next_byte) == (b"", 0, False, 14)


async def test_a_page_is_cut_between_characters_and_next_byte_continues_there(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes("é".encode() * 100)
    page = await lines(file, limit_bytes=11)
    assert (page.data.decode(), page.cut, page.more, page.next_byte, page.binary) == ("é" * 5, True, True, 10, False)


async def test_a_page_that_fits_exactly_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345\n12345\n")
    page = await lines(file, limit_bytes=6)
    assert (page.data, page.cut, page.more) == (b"12345\n", False, True)
    page = await lines(file, 1, limit_bytes=6)
    assert (page.data, page.cut, page.more) == (b"12345\n", False, False)


async def test_a_line_far_into_a_large_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"".join(b"%07d\n" % n for n in range(200_000)))
    assert (await lines(file, 150_000, 1)).data == b"0150000\n"


@pytest.mark.parametrize(
    "data, binary", [(b"a\0b", True), (b"\xff\xfe", True), ("äö€😀".encode(), False), (b"", False)]
)
async def test_a_page_that_is_not_text_is_marked_as_binary(tmp_path: Path, data: bytes, binary: bool) -> None:
    (tmp_path / "a").write_bytes(data)
    assert (await lines(tmp_path / "a")).binary is binary


@pytest.mark.parametrize(
    "path, kind",
    [
        ("relative", wire.FAILURE_KIND_INVALID_PATH),
        ("", wire.FAILURE_KIND_INVALID_PATH),
        ("/a/../b", wire.FAILURE_KIND_INVALID_PATH),
        ("/a\0b", wire.FAILURE_KIND_INVALID_PATH),
        ("/" + "a/" * 3000, wire.FAILURE_KIND_INVALID_PATH),
        ("/" + "a" * 300, wire.FAILURE_KIND_INVALID_PATH),
        ("/proc/self/environ", wire.FAILURE_KIND_INVALID_PATH),
        ("/no/such/file", wire.FAILURE_KIND_NOT_FOUND),
        ("/dev/null/file", wire.FAILURE_KIND_NOT_A_DIRECTORY),
    ],
)
def test_errors_of_paths_are_distinguished(path: str, kind: int) -> None:
    with pytest.raises(Fault) as caught:
        tree_files.stat_path(wire.StatRequest(path=path))
    assert caught.value.kind == kind, caught.value.message


def test_the_root_can_be_described_and_a_link_is_described_itself(tmp_path: Path) -> None:
    assert tree_files.stat_path(wire.StatRequest(path="/")).entry.type == wire.ENTRY_TYPE_DIRECTORY
    (tmp_path / "link").symlink_to("/etc")
    assert tree_files.stat_path(wire.StatRequest(path=f"{tmp_path}/link")).entry.type == wire.ENTRY_TYPE_SYMLINK


def test_a_link_on_the_way_is_refused_with_the_whole_path_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    with pytest.raises(Fault) as caught:
        tree_files.stat_path(wire.StatRequest(path=f"{tmp_path}/link/deep/file"))
    assert caught.value.kind == wire.FAILURE_KIND_INVALID_PATH
    assert f"{tmp_path}/real/deep/file" in caught.value.message


def test_refused_calls_leak_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    before = len(os.listdir("/proc/self/fd"))
    for path in (f"{tmp_path}/link/x", f"{tmp_path}/no/x", "/dev/null/x", f"{tmp_path}/x"):
        with pytest.raises(Fault):
            tree_files.stat_path(wire.StatRequest(path=path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("filler", [b"", b"." * 2_000_000], ids=["small", "large"])
async def test_an_edit_replaces_the_first_match_and_says_how_many_are_left(tmp_path: Path, filler: bytes) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x1 x2 x3" + filler)
    reply = (await write_files.edit(wire.EditRequest(path=str(file), old_text=b"x", new_text=b"yy"))).edit
    assert (reply.replaced, reply.left) == (1, 2)
    reply = (
        await write_files.edit(wire.EditRequest(path=str(file), old_text=b"x", new_text=b"", replace_all=True))
    ).edit
    assert (reply.replaced, reply.left) == (2, 0)
    assert file.read_bytes() == b"yy1 2 3" + filler
    before = file.stat().st_ino
    reply = (await write_files.edit(wire.EditRequest(path=str(file), old_text=b"none", new_text=b"z"))).edit
    assert (reply.replaced, reply.left) == (0, 0)
    assert file.stat().st_ino == before
    assert os.listdir(tmp_path) == ["a"]


async def test_edits_of_huge_files_or_to_huge_files_are_too_large(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with file.open("wb") as opened:
        opened.truncate(write_files.FILE_LIMIT_BYTES + 1)
    with pytest.raises(Fault) as caught:
        await write_files.edit(wire.EditRequest(path=str(file), old_text=b"x", new_text=b"y"))
    assert caught.value.kind == wire.FAILURE_KIND_TOO_LARGE
    file.write_bytes(b"x" * 10_000)
    request = wire.EditRequest(path=str(file), old_text=b"x", new_text=b"y" * 10_000, replace_all=True)
    with pytest.raises(Fault) as caught:
        await write_files.edit(request)
    assert caught.value.kind == wire.FAILURE_KIND_TOO_LARGE


@pytest.mark.parametrize("count", [7, 6000], ids=["small", "large"])
async def test_a_directory_is_listed_sorted_in_pages(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"f{number:05}").touch()
    page = (await tree_files.list_directory(wire.ListRequest(path=str(tmp_path), offset=2, limit=3))).entries
    assert [entry.name for entry in page.entries] == [b"f00002", b"f00003", b"f00004"]
    assert (page.total, page.more) == (count, True)
    page = (await tree_files.list_directory(wire.ListRequest(path=str(tmp_path), offset=count - 1, limit=3))).entries
    assert (len(page.entries), page.more) == (1, False)


async def test_names_that_are_not_utf8_are_listed_as_their_bytes(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff")).touch()
    page = (await tree_files.list_directory(wire.ListRequest(path=str(tmp_path), limit=3))).entries
    assert [entry.name for entry in page.entries] == [b"\xff"]


async def test_removing_takes_a_link_itself_and_a_full_directory_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "gone" / "deep").mkdir(parents=True)
    (tmp_path / "gone" / "deep" / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(Fault) as caught:
        await tree_files.remove(wire.RemoveRequest(path=f"{tmp_path}/gone"))
    assert caught.value.kind == wire.FAILURE_KIND_CONFLICT
    await tree_files.remove(wire.RemoveRequest(path=f"{tmp_path}/gone", recursive=True))
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


async def test_a_tree_deeper_than_descriptors_and_calls_go_is_removed(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in ("tree", *("d" for _ in range(3000))):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    await tree_files.remove(wire.RemoveRequest(path=f"{tmp_path}/tree", recursive=True))
    assert os.listdir(tmp_path) == []


def test_mkdir_makes_parents_and_may_be_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        reply = tree_files.make_directory(wire.MkdirRequest(path=f"{tmp_path}/a/b"))
        assert (reply.entry.type, stat.S_IMODE(reply.entry.mode)) == (wire.ENTRY_TYPE_DIRECTORY, 0o755)
    (tmp_path / "file").touch()
    with pytest.raises(Fault) as caught:
        tree_files.make_directory(wire.MkdirRequest(path=f"{tmp_path}/file"))
    assert caught.value.kind == wire.FAILURE_KIND_NOT_A_DIRECTORY


async def test_renaming_replaces_a_file_and_refuses_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    (tmp_path / "link").symlink_to("b")
    await tree_files.rename(wire.RenameRequest(path=f"{tmp_path}/a", new_path=f"{tmp_path}/b"))
    assert (tmp_path / "b").read_text() == "a"
    with pytest.raises(Fault) as caught:
        await tree_files.rename(wire.RenameRequest(path=f"{tmp_path}/b", new_path=f"{tmp_path}/link"))
    assert caught.value.kind == wire.FAILURE_KIND_INVALID_PATH


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "a.py",
        ".hidden.py",
        "b/c.py",
        "b/c/d.py",
        "b-x/e.py",
        "b/.git/f.py",
        "z.txt",
        ".airlock/output/g.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("needle\n")
    (tmp_path / "loop").symlink_to(".")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        "*.py",
        "**/*.py",
        "b/**/*.py",
        "*",
        "*/*",
        "**/c",
        "**/c/*",
        "b/c.py",
        "[ab]*",
        "?.py",
        "**/b/**/d.py",
        "**/.*",
        "*/",
    ],
)
async def test_glob_finds_what_pathlib_finds_in_its_order(tree: Path, pattern: str) -> None:
    # pathlib looks through a link to a directory (loop/x, and loop itself for */); the daemon never does.
    expected = [path for path in sorted(tree.glob(pattern)) if "loop" not in path.parts[:-1]]
    if pattern.endswith("/"):
        expected = [path for path in expected if not path.is_symlink()]
    assert await glob(tree, pattern) == [str(path) for path in expected]


async def test_glob_pages_and_skips_the_private_directory_unless_inside_it(tree: Path) -> None:
    workspace = str(tree)
    everything = await glob(tree, "**/*.py", workspace=workspace)
    assert not any(".airlock" in path for path in everything)
    assert await glob(tree, "**/*.py", 1, 2, workspace) == everything[1:3]
    assert await glob(tree / ".airlock", "**/*.py", workspace=workspace) == [f"{tree}/.airlock/output/g.py"]


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "a\0", "."])
async def test_patterns_that_cannot_be_used_are_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(Fault) as caught:
        await glob(tmp_path, pattern)
    assert caught.value.kind == wire.FAILURE_KIND_INVALID_ARGUMENT


async def test_grep_finds_lines_with_their_numbers_in_order(tree: Path) -> None:
    (tree / "z.txt").write_text("no\nyes ärger\r\nneedle yes\n")
    reply = await grep(tree, "^yes.ä|needle yes", workspace=str(tree))
    assert [(match.line, match.text.decode()) for match in reply.matches] == [(2, "yes ärger"), (3, "needle yes")]
    reply = await grep(tree, "needle", workspace=str(tree), include="*.py")
    assert [os.path.relpath(os.fsdecode(match.path), tree) for match in reply.matches] == [
        ".hidden.py",
        "a.py",
        "b/.git/f.py",
        "b/c/d.py",
        "b/c.py",
        "b-x/e.py",
    ]
    page = await grep(tree, "needle", workspace=str(tree), include="*.py", offset=1, limit=2)
    assert ([match.line for match in page.matches], page.more) == ([1, 1], True)
    assert len((await grep(tree / ".airlock", "needle", workspace=str(tree))).matches) == 1


async def test_grep_skips_binary_files_and_counts_them(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    reply = await grep(tmp_path, "needle")
    assert (len(reply.matches), reply.binary_files) == (0, 1)


async def test_grep_shows_a_thousand_bytes_around_a_match_in_a_long_line(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes("é".encode() * 100_000 + b"needle" + "é".encode() * 100_000)
    for pattern in ("needle", "n[e]edle"):
        (match,) = (await grep(tmp_path / "long", pattern)).matches
        assert len(match.text) <= 1000
        assert "needle" in match.text.decode()


async def test_an_invalid_expression_is_reported_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(Fault) as caught:
        await grep(tmp_path, "a(b")
    assert caught.value.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert "at character 2" in caught.value.message


async def test_an_expression_without_end_is_ended_and_the_child_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"a" * 40 + b"!")
    children: list[int] = []
    fork = os.fork

    def noted_fork() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    assert (await grep(tmp_path, "(a+)+$", timeout_ms=200)).timed_out
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


async def test_work_that_takes_the_memory_is_a_clear_failure() -> None:
    def work(emit: Emit) -> None:
        emit(wire.GrepReply(matches=[wire.GrepMatch(text=bytes(1 << 30))]))

    with pytest.raises(Fault) as caught:
        await work_in_child(work, wire.GrepReply(), 10, "/workspace")
    assert caught.value.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
    assert "too much memory" in caught.value.message
