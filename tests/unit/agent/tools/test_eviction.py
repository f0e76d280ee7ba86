"""Eviction: what is too large stays in a file; head, tail and the way to the rest are shown."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities.bash import bash
from agent.capabilities.filesystem import filesystem
from agent.filesystem import Entry
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import Evicted, ToolResult
from agent.state import ToolExecution
from agent.tools.eviction import EVICTION_PRIORITY, OUTPUT_DIRECTORY, PAGING_TOOLS, Eviction, EvictionHook
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import (
    Events,
    FakeExec,
    FakeFiles,
    FakePiece,
    FakeShell,
    FakeSpill,
    call,
    execution_of,
    ran,
    state,
    tool,
)

SMALL = Eviction(limit_chars=100, head_chars=10, tail_chars=20)
WHOLE = b"".join(b"line %03d\n" % number for number in range(100))


async def evicted(hook: EvictionHook, result: ToolResult, name: str = "fetch", id_: str = "c1") -> ToolResult:
    """Send a result through the ring."""

    async def center(_tool: ToolExecution) -> ToolResult:
        return result

    return await hook.around_tool_use(execution_of(call(name, id_)), center)


async def test_a_large_result_is_kept_whole_in_a_file_and_shown_with_head_marker_and_tail(tmp_path: Path) -> None:
    result = await evicted(EvictionHook(LocalFS(tmp_path), SMALL), ToolResult(WHOLE))
    assert (tmp_path / ".airlock" / "output" / "c1.txt").read_bytes() == WHOLE
    assert result.content.startswith(WHOLE[:10] + b"\n[... 870 bytes left out here. ")
    assert result.content.endswith(b" ...]\n" + WHOLE[-20:])
    assert b'read_file {"path": "/workspace/.airlock/output/c1.txt", "offset": 0}' in result.content
    assert result.evicted == Evicted(
        path="/workspace/.airlock/output/c1.txt",
        size_bytes=900,
        lines=100,
        sha256=hashlib.sha256(WHOLE).hexdigest(),
        incomplete=False,
    )


async def test_what_is_no_content_stays_as_the_tool_gave_it() -> None:
    given_ = ToolResult(WHOLE, "signalled", True, 3, None, b"out", b"err", "a note")
    result = await evicted(EvictionHook(FakeFiles(), SMALL), given_)
    assert result.evicted is not None
    assert replace(result, content=WHOLE, evicted=None) == given_


async def test_the_file_is_read_and_searched_with_the_calls_that_the_marker_names(tmp_path: Path) -> None:
    files = LocalFS(tmp_path)
    await evicted(EvictionHook(files, SMALL), ToolResult(WHOLE))
    tools = Toolbox(filesystem(files).tools)
    path = f"{OUTPUT_DIRECTORY}/c1.txt"
    page = await ran(tools, call("read_file", path=path, offset=0))
    found = await ran(tools, call("grep", pattern="line 05", path=path))
    assert page.content == WHOLE
    assert found.content.count(b"\n") == 9


async def test_kept_results_stay_out_of_git_and_an_ignore_file_that_is_there_is_left(tmp_path: Path) -> None:
    hook = EvictionHook(LocalFS(tmp_path), SMALL)
    ignore = tmp_path / ".airlock" / ".gitignore"
    await evicted(hook, ToolResult(WHOLE))
    assert ignore.read_bytes() == b"*\n"
    ignore.write_bytes(b"mine\n")
    await evicted(hook, ToolResult(WHOLE), id_="c2")
    assert ignore.read_bytes() == b"mine\n"


@pytest.mark.parametrize("name", sorted(PAGING_TOOLS))
async def test_the_file_tools_are_never_evicted_for_they_page(name: str) -> None:
    files = FakeFiles()
    assert await evicted(EvictionHook(files, SMALL), ToolResult(WHOLE), name) == ToolResult(WHOLE)
    assert files.files == {}


async def test_the_limit_counts_characters_as_they_are_shown_and_at_the_limit_nothing_happens() -> None:
    hook = EvictionHook(FakeFiles(), SMALL)
    for at_limit in (
        b"x" * 100,
        "ä".encode() * 100,
        "𝔸".encode() * 100,
        b"\xff" * 100,
        "€".encode() * 99 + b"\xe2\x82",
    ):
        assert (await evicted(hook, ToolResult(at_limit))).evicted is None
        past = await evicted(hook, ToolResult(at_limit + b"x"))
        assert past.evicted is not None


async def test_a_tool_can_have_sizes_of_its_own() -> None:
    hook = EvictionHook(FakeFiles(), SMALL, {"fetch": Eviction(1000, 5, 0)})
    assert (await evicted(hook, ToolResult(WHOLE), "fetch")).evicted is None
    longer = await evicted(hook, ToolResult(WHOLE + WHOLE), "fetch")
    assert longer.content.startswith(WHOLE[:5] + b"\n[... 1795 bytes")
    assert longer.content.endswith(b" ...]\n")
    assert (await evicted(hook, ToolResult(WHOLE), "fetcher")).evicted is not None


async def test_output_that_was_evicted_at_the_source_is_left_as_it_is() -> None:
    files = FakeFiles()
    spill = FakeSpill(f"{OUTPUT_DIRECTORY}/c1.txt", 100_000, 5000)
    pieces = [FakePiece("stdout", b"h" * 200)]
    done = FakeExec(output=pieces, tail=[FakePiece("stdout", b"t" * 200)], evicted=spill, output_bytes=100_000)
    tools = Toolbox(bash(FakeShell(done)).tools)
    at_source = await ran(tools, call("execute", command="x"))
    assert await evicted(EvictionHook(files, SMALL), at_source, "execute") is at_source
    assert files.files == {}


async def test_output_of_a_shell_that_does_not_evict_is_evicted_here() -> None:
    files = FakeFiles()
    result = await evicted(EvictionHook(files, SMALL), ToolResult(WHOLE, "exited", exit_code=0), "execute")
    assert (result.outcome, result.exit_code) == ("exited", 0)
    assert files.files[f"{OUTPUT_DIRECTORY}/c1.txt"] == WHOLE


class FullDisk(FakeFiles):
    """Takes nothing; `error` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [OSError("no space\nis left"), PermissionError("no"), RuntimeError("sandbox lost")])
async def test_a_result_that_cannot_be_kept_is_cut_and_says_that_the_rest_is_lost(error: Exception) -> None:
    result = await evicted(EvictionHook(FullDisk(error), SMALL), ToolResult(WHOLE, note="n", is_error=True))
    assert result.evicted is None
    assert (result.note, result.is_error) == ("n", True)
    assert result.content.startswith(WHOLE[:10] + b"\n[... 870 bytes left out here, and they are lost: ")
    assert result.content.endswith(b" ...]\n" + WHOLE[-20:])
    assert " ".join(str(error).split()).encode() in result.content


async def test_a_disk_that_cannot_be_written_is_reported_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / ".airlock").write_text("a file stands where the directory should")
    result = await evicted(EvictionHook(LocalFS(tmp_path), SMALL), ToolResult(WHOLE))
    assert result.evicted is None
    assert b"they are lost" in result.content


async def test_a_link_planted_where_the_file_goes_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "w" / ".airlock" / "output").mkdir(parents=True)
    (tmp_path / "w" / ".airlock" / "output" / "c1.txt").symlink_to(tmp_path / "outside")
    result = await evicted(EvictionHook(LocalFS(tmp_path / "w"), SMALL), ToolResult(WHOLE))
    assert result.evicted is None
    assert not (tmp_path / "outside").exists()


async def test_a_write_that_hangs_is_given_up_and_the_result_is_reported() -> None:
    class Hanging(FakeFiles):
        async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Any:
            await asyncio.Event().wait()

    hook = EvictionHook(Hanging(), SMALL)
    hook.timeout_s = 0.01
    result = await evicted(hook, ToolResult(WHOLE))
    assert b"they are lost" in result.content


async def test_an_ignore_file_that_cannot_be_written_costs_nothing() -> None:
    class NoIgnore(FakeFiles):
        async def stat(self, path: str) -> Entry:  # type: ignore[override]
            raise RuntimeError("sandbox lost")

    result = await evicted(EvictionHook(NoIgnore(), SMALL), ToolResult(WHOLE))
    assert result.evicted is not None


@pytest.mark.parametrize("id_", ["", "../../etc/passwd", "a/b", "a\0", "x" * 65, "ä", "\udcff", "c1\n", ".."])
async def test_a_call_id_that_is_no_file_name_gets_one_below_the_output_directory(id_: str) -> None:
    files = FakeFiles()
    result = await evicted(EvictionHook(files, SMALL), ToolResult(WHOLE), id_=id_)
    other = await evicted(EvictionHook(files, SMALL), ToolResult(WHOLE), id_=f"{id_}!")
    assert result.evicted is not None
    assert other.evicted is not None
    directory, _, name = result.evicted.path.rpartition("/")
    assert directory == OUTPUT_DIRECTORY
    assert name.removesuffix(".txt").replace("_", "").isalnum()
    assert files.files[result.evicted.path] == WHOLE
    assert other.evicted.path != result.evicted.path


@given(
    st.lists(st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40)), min_size=1, max_size=30),
    st.integers(0, 12),
    st.integers(0, 12),
)
async def test_head_and_tail_cut_no_character_and_nothing_is_shown_twice(
    pieces: list[bytes], head_chars: int, tail_chars: int
) -> None:
    whole = b"".join(pieces)
    files = FakeFiles()
    hook = EvictionHook(files, Eviction(max(1, head_chars + tail_chars), head_chars, tail_chars))
    result = await evicted(hook, ToolResult(whole))
    if result.evicted is None:
        assert result.content == whole
        return
    head, _, rest = result.content.partition(b"\n[... ")
    tail = rest.rpartition(b" ...]\n")[2]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) <= len(whole)
    assert files.files[result.evicted.path] == whole
    # As many characters as asked for, each byte that is no UTF-8 counted as one.
    text = whole.decode("utf-8", "surrogateescape")
    assert head.decode("utf-8", "surrogateescape") == text[:head_chars]
    assert tail.decode("utf-8", "surrogateescape") == (text[-tail_chars:] if tail_chars else "")


class Outermost(Hook):
    """Sees what the rings inside leave of a result."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.seen: list[ToolResult] = []

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        self.seen.append(await next_(tool))
        return self.seen[-1]


async def test_every_ring_but_the_journal_sees_the_short_result() -> None:
    async def fetch(*_: object) -> ToolResult:
        return ToolResult(WHOLE)

    usual, journal = Outermost(0), Outermost(-1_000_000)
    assert journal.priority < EVICTION_PRIORITY < usual.priority
    capability = filesystem(FakeFiles(), eviction=SMALL)
    runner = ToolRunner(HookEngine([journal, *capability.hooks, usual]), Toolbox([tool("fetch", fetch)]), Events())
    (execution,) = (await runner.run(state(), [call("fetch")])).current.tool_executions
    assert journal.seen[0].content == WHOLE
    assert usual.seen[0].evicted is not None
    assert execution.result is usual.seen[0]


def test_the_ring_is_mandatory_so_that_subagents_have_it() -> None:
    (hook,) = (hook for hook in filesystem(FakeFiles()).hooks if isinstance(hook, EvictionHook))
    assert hook.mandatory


@pytest.mark.parametrize("sizes", [(10, 6, 5), (0, 0, 0), (10, -1, 5), (10, 5, -1)])
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="head_chars and tail_chars"):
        Eviction(*sizes)


def test_the_old_way_to_the_sizes_still_leads_there() -> None:
    from agent.capabilities.bash import Eviction as OldName

    assert OldName is Eviction
