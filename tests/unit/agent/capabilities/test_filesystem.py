"""The six file tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.capabilities.filesystem import PAGE_BYTES, filesystem
from agent.hooks.engine import HookEngine
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState
from agent.tools.eviction import Eviction
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import Events, FakeEntries, FakeFiles, FakeMatches, PolicyThat, call, ran, state, tool


async def use(files: FakeFiles, name: str, **arguments: Any) -> ToolResult:
    return await ran(Toolbox(filesystem(files).tools), call(name, **arguments))


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


async def test_a_binary_file_is_reported_as_binary_with_a_way_to_read_its_bytes() -> None:
    result = await use(FakeFiles({"/workspace/a b": b"\xff\x00\x01"}), "read_file", path="a b")
    assert result.is_error
    assert "binary" in result.text()
    assert "od -A d -t x1z -j 0 -N 256 '/workspace/a b'" in result.text()


async def test_reading_past_the_end_and_an_empty_file_are_reported() -> None:
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


async def test_edit_file_without_a_match_is_an_error_that_says_how_to_fix_it() -> None:
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


class Searched(FakeFiles):
    """Files whose searches find nothing, and say what they did not search."""

    def __init__(self, *, timed_out: bool = False, unsearched: int = 0) -> None:
        super().__init__()
        self._timed_out = timed_out
        self._unsearched = unsearched

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> FakeEntries:
        return FakeEntries((), 0, False, self._unsearched)

    async def grep(self, path: str, pattern: str, **_: Any) -> FakeMatches:
        return FakeMatches((), self._timed_out, self._timed_out, unsearched=self._unsearched)


async def test_a_search_that_ran_out_of_time_with_nothing_does_not_offer_the_same_call_again() -> None:
    note = (await use(Searched(timed_out=True), "grep", pattern="x")).note
    assert "Next" not in note
    assert "no line matches" not in note
    assert "ran out of time" in note


@pytest.mark.parametrize("name", ["glob", "grep"])
async def test_what_a_search_could_not_read_is_reported(name: str) -> None:
    assert "could not be read or lie too deep: 3]" in (await use(Searched(unsearched=3), name, pattern="x")).note
    assert "could not be read" not in (await use(Searched(), name, pattern="x")).note


async def test_a_page_past_the_end_says_so() -> None:
    files = FakeFiles({"/workspace/a.py": b""})
    for name, arguments in (("ls", {"path": "/workspace"}), ("glob", {"pattern": "*.py"})):
        note = (await use(files, name, **arguments, offset=5)).note
        assert note == "[offset 5 is past the end: there are 1]"


async def test_a_bad_pattern_and_a_missing_file_are_errors_for_the_model() -> None:
    assert (await use(FakeFiles(), "grep", pattern="(")).is_error
    missing = await use(FakeFiles(), "read_file", path="nope")
    assert missing.text() == "/workspace/nope does not exist; ls shows what is there"


async def step(files: Any, before: AgentState, *calls: ToolCall, hooks: Any = (), events: Any = None) -> AgentState:
    """Take the tool calls of one step, through all hooks of the capability."""
    capability = filesystem(files)
    runner = ToolRunner(
        HookEngine([*capability.hooks, *hooks]), Toolbox(capability.tools), Events() if events is None else events
    )
    return await runner.run(before, calls)


async def test_files_that_were_written_or_edited_are_tracked_by_their_absolute_path(tmp_path: Path) -> None:
    write = call("write_file", "c1", path="d/../a.py", content="é = 1\n")
    after = await step(LocalFS(tmp_path), state(steps=3), write)
    assert after.metadata == {
        "files./workspace/a.py": {"action": "written", "step": 3, "change": 1, "size_bytes": len("é = 1\n".encode())}
    }
    edit = call("edit_file", "c2", path="/workspace/a.py", old_text="1", new_text="2")
    after = await step(LocalFS(tmp_path), after.with_(steps=4), edit)
    assert after.metadata == {"files./workspace/a.py": {"action": "edited", "step": 4, "change": 2}}
    assert (tmp_path / "a.py").read_text() == "é = 2\n"


async def test_calls_that_changed_nothing_are_not_tracked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "d").mkdir()
    calls = [
        call("read_file", "c1", path="a"),
        call("edit_file", "c2", path="a", old_text="not there", new_text="y"),
        call("write_file", "c3", path="d", content="a directory is there"),
        call("write_file", "c4", path="a"),
        call("write_file_twice", "c5", path="a", content="y"),
    ]
    assert (await step(LocalFS(tmp_path), state(), *calls)).metadata == {}


async def test_a_blocked_write_is_not_tracked() -> None:
    no = PolicyThat(lambda s: s.block("policy", "no", "not here"))
    after = await step(FakeFiles(), state(), call("write_file", path="a", content="x"), hooks=[no])
    assert after.metadata == {}


async def test_tracking_survives_json_and_keeps_what_others_keep() -> None:
    before = state(metadata={"todos.list": [], "filesystem": "mine", "files": 1})
    after = await step(FakeFiles(), before, call("write_file", path="a", content="x"))
    again = AgentState.model_validate_json(after.model_dump_json())
    assert again.metadata == {**before.metadata, "files./workspace/a": after.metadata["files./workspace/a"]}


async def test_what_a_step_reports_of_tracking_does_not_grow_with_the_files_tracked() -> None:
    files, after = FakeFiles(), state()
    sizes = []
    for number in range(200):
        events = Events()
        write = call("write_file", path=f"f{number:04}", content="x")
        after = await step(files, after.cleared().with_(steps=number), write, events=events)
        (reported,) = events.of("state_changed")
        sizes.append(len(json.dumps(reported)))
        assert list(reported["metadata"]) == [f"files./workspace/f{number:04}"]  # type: ignore[arg-type]
    assert max(sizes) - min(sizes) <= 6  # digits of numbers


async def test_past_256_files_the_one_changed_longest_ago_is_forgotten_also_after_a_restart() -> None:
    files, after = FakeFiles(), state()
    writes = [call("write_file", f"c{n}", path=f"f{n}", content="x") for n in range(256)]
    after = await step(files, after, *writes)
    after = await step(files, after.cleared(), call("edit_file", path="f0", old_text="x", new_text="y"))
    assert len(after.metadata) == 256
    # A store may give the keys back in any order, and a new run counts its steps from the start.
    after = after.cleared().with_(metadata=dict(sorted(after.metadata.items(), reverse=True)), steps=1)
    after = await step(files, after, call("write_file", path="new", content="x"))
    assert len(after.metadata) == 256
    assert "files./workspace/f1" not in after.metadata
    assert {"files./workspace/f0", "files./workspace/f2", "files./workspace/new"} <= after.metadata.keys()


@pytest.mark.parametrize("bad", [None, "text", 7, [], {}, {"change": "x"}])
async def test_an_entry_that_is_none_of_ours_breaks_nothing(bad: Any) -> None:
    before = state(metadata={"files./workspace/old": bad})
    after = await step(FakeFiles(), before, call("write_file", path="a", content="x"))
    assert after.metadata["files./workspace/a"] == {"action": "written", "step": 0, "change": 1, "size_bytes": 1}


async def test_a_path_that_is_not_utf8_leaves_a_state_that_can_be_stored() -> None:
    after = await step(FakeFiles(), state(), call("write_file", path="\udcff", content="x"))
    assert list(after.metadata) == ["files./workspace/\\udcff"]
    assert AgentState.model_validate_json(after.cleared().model_dump_json()).metadata == after.metadata


async def test_other_tools_results_are_evicted_to_the_files_of_the_capability(tmp_path: Path) -> None:
    async def fetch(*_: object) -> ToolResult:
        return ToolResult(b"x" * 500)

    own = {"look": Eviction(1000, 1, 1)}
    capability = filesystem(LocalFS(tmp_path), eviction=Eviction(100, 10, 10), eviction_per_tool=own)
    tools = Toolbox([*capability.tools, tool("fetch", fetch), tool("look", fetch)])
    (tmp_path / "long").write_text("y" * 500)
    calls = [call("fetch", "c1"), call("look", "c2"), call("read_file", "c3", path="long")]
    after = await ToolRunner(HookEngine(capability.hooks), tools, Events()).run(state(), calls)
    fetched, looked, read = (execution.result for execution in after.current.tool_executions)
    assert fetched is not None
    assert fetched.evicted is not None
    assert (tmp_path / ".airlock" / "output" / "c1.txt").read_bytes() == b"x" * 500
    assert looked == ToolResult(b"x" * 500)
    assert read == ToolResult(b"y" * 500)
