"""The six file tools."""

from __future__ import annotations

import json
from typing import Any

from agent.capabilities.filesystem import PAGE_BYTES, filesystem
from agent.tool import ToolContext, ToolResult
from agent.toolbox import Toolbox
from tests.unit.agent.fakes import FakeFiles, call


async def use(files: FakeFiles, name: str, **arguments: Any) -> ToolResult:
    return await Toolbox(filesystem(files).tools).execute(call(name, **arguments), ToolContext("c1"))


def next_call(result: ToolResult) -> dict[str, Any]:
    name, _, arguments = result.note.partition("Next: ")[2].rstrip("]").partition(" ")
    return {"name": name, **json.loads(arguments)}


async def test_ls_is_a_json_array_and_its_pages_lead_to_each_other() -> None:
    files = FakeFiles({f"/workspace/f{n}": b"x" * n for n in range(5)})
    first = await use(files, "ls", limit=3)
    assert json.loads(first.content)[2] == {"name": "f2", "type": "file", "size": 2}
    second = await use(files, **next_call(first))
    assert [entry["name"] for entry in json.loads(second.content)] == ["f3", "f4"]
    assert second.note == ""


async def test_ls_stays_valid_json_for_long_directories_and_names_that_are_not_utf8() -> None:
    files = FakeFiles({f"/workspace/{n:04}{'x' * 200}": b"" for n in range(900)} | {"/workspace/\udcff": b""})
    result = await use(files, "ls")
    assert len(result.content) <= PAGE_BYTES
    names = [entry["name"] for entry in json.loads(result.content)]
    rest = await use(files, **next_call(result))
    names += [entry["name"] for entry in json.loads((rest).content)]
    while rest.note:
        rest = await use(files, **next_call(rest))
        names += [entry["name"] for entry in json.loads(rest.content)]
    assert len(names) == 901
    assert names[-1] == "\udcff"


async def test_read_file_gives_raw_bytes_and_the_exact_next_call() -> None:
    files = FakeFiles({"/workspace/a": b"".join(b"line %d\r\n" % n for n in range(10))})
    first = await use(files, "read_file", path="a", limit=4)
    assert first.content == b"line 0\r\nline 1\r\nline 2\r\nline 3\r\n"
    second = await use(files, **next_call(first))
    assert second.content.startswith(b"line 4\r\n")
    whole = await use(files, "read_file", path="a")
    assert (whole.content, whole.note) == (files.files["/workspace/a"], "")


async def test_one_very_long_line_can_be_read_to_its_end() -> None:
    text = "ä" * 50_000 + "\nend\n"
    files = FakeFiles({"/workspace/a": text.encode()})
    result = await use(files, "read_file", path="a")
    read = result.content
    while result.note:
        result = await use(files, **next_call(result))
        assert not result.is_error
        read += result.content
    assert read.decode() == text


async def test_a_binary_file_is_told_as_binary_with_a_way_to_its_bytes() -> None:
    result = await use(FakeFiles({"/workspace/a b": b"\xff\x00\x01"}), "read_file", path="a b")
    assert result.is_error
    assert "binary" in result.text()
    assert "od -A d -t x1z -j 0 -N 256 '/workspace/a b'" in result.text()


async def test_reading_past_the_end_and_an_empty_file_are_told() -> None:
    files = FakeFiles({"/workspace/a": b"1\n", "/workspace/e": b""})
    assert "past the end" in (await use(files, "read_file", path="a", offset=9)).note
    assert "is empty" in (await use(files, "read_file", path="e")).note


async def test_write_file_writes_the_bytes() -> None:
    files = FakeFiles()
    result = await use(files, "write_file", path="d/a", content="é\n")
    assert files.files == {"/workspace/d/a": "é\n".encode()}
    assert result.text() == "wrote 3 bytes to /workspace/d/a"


async def test_edit_file_replaces_the_first_match_says_how_many_are_left_and_offers_replace_all() -> None:
    files = FakeFiles({"/workspace/a": b"x x x"})
    result = await use(files, "edit_file", path="a", old_text="x", new_text="y")
    assert files.files["/workspace/a"] == b"y x x"
    assert "2 more matches are left" in result.note
    assert "replace_all" in result.note
    result = await use(files, "edit_file", path="a", old_text="x", new_text="y", replace_all=True)
    assert files.files["/workspace/a"] == b"y y y"
    assert result.note == ""


async def test_edit_file_without_a_match_is_an_error_that_says_how_to_mend_it() -> None:
    result = await use(FakeFiles({"/workspace/a": b"x"}), "edit_file", path="a", old_text="q", new_text="y")
    assert result.is_error
    assert "old_text is not in /workspace/a; nothing was changed" in result.text()


async def test_glob_and_grep_page() -> None:
    files = FakeFiles({f"/workspace/f{n}.py": b"needle\nhay\n" for n in range(3)})
    first = await use(files, "glob", pattern="*.py", limit=2)
    assert first.content == b"/workspace/f0.py\n/workspace/f1.py"
    assert (await use(files, **next_call(first))).content == b"/workspace/f2.py"
    found = await use(files, "grep", pattern="need", include="*.py", limit=2)
    assert found.content == b"/workspace/f0.py:1:needle\n/workspace/f1.py:1:needle"
    assert next_call(found)["include"] == "*.py"
    assert (await use(files, **next_call(found))).content == b"/workspace/f2.py:1:needle"


async def test_nothing_found_is_said_and_is_no_error() -> None:
    for name in ("glob", "grep"):
        result = await use(FakeFiles(), name, pattern="zzz")
        assert not result.is_error
        assert "zzz" in result.note


async def test_a_bad_pattern_and_a_missing_file_are_errors_for_the_model() -> None:
    assert (await use(FakeFiles(), "grep", pattern="(")).is_error
    missing = await use(FakeFiles(), "read_file", path="nope")
    assert missing.text() == "/workspace/nope does not exist; ls shows what is there"
