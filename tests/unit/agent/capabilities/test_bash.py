"""The execute tool."""

from __future__ import annotations

import pytest

from agent.capabilities.bash import bash
from agent.tool import ToolContext, ToolResult
from agent.toolbox import Toolbox
from tests.unit.agent.fakes import FakeExec, FakePiece, FakeShell, FakeSpill, call


async def use(done: FakeExec) -> ToolResult:
    return await Toolbox(bash(FakeShell(done)).tools).execute(call("execute", command="x"), ToolContext("c1"))


async def test_output_is_raw_in_order_of_arrival_and_apart() -> None:
    pieces = [FakePiece("stdout", b"a\xff"), FakePiece("stderr", b"b\0"), FakePiece("stdout", b"c")]
    result = await use(FakeExec(output=pieces, output_bytes=5))
    assert (result.content, result.stdout, result.stderr) == (b"a\xffb\0c", b"a\xffc", b"b\0")
    assert (result.is_error, result.exit_code, result.note) == (False, 0, "")


@pytest.mark.parametrize(
    "done, note",
    [
        (FakeExec(exit_code=1), "[exit code 1]"),
        (FakeExec("timed_out", None), "timed out after 120 s"),
        (FakeExec("signalled", None, 11), "signal 11"),
        (FakeExec("out_of_memory", None), "memory limit"),
        (FakeExec("pids_limit", None), "limit of processes"),
        (FakeExec("failed_to_start", None, message="no such file"), "did not start: no such file"),
        (FakeExec("daemon_lost", None), "sandbox was lost"),
        (FakeExec("cancelled", None), "cancelled"),
    ],
)
async def test_every_end_but_success_is_an_error_and_is_said(done: FakeExec, note: str) -> None:
    result = await use(done)
    assert result.is_error
    assert result.outcome == done.outcome
    assert note in result.note
    assert result.content == b""


async def test_an_evicted_result_shows_head_and_tail_and_how_to_read_the_rest() -> None:
    spill = FakeSpill("/workspace/.airlock/output/c1.txt", 100_000, 5000)
    done = FakeExec(
        output=[FakePiece("stdout", b"HEAD")], tail=[FakePiece("stderr", b"TAIL")], evicted=spill, output_bytes=100_000
    )
    result = await use(done)
    assert result.content.startswith(b"HEAD\n[... 99992 bytes left out here.")
    assert result.content.endswith(b"]\nTAIL")
    assert result.content.count(b"\n") == 2
    for said in (b"/workspace/.airlock/output/c1.txt", b"100000 bytes", b"5000 lines", b"grep", b"read_file"):
        assert said in result.content
    assert result.evicted is not None
    assert result.evicted.path == spill.path
    assert (result.stdout, result.stderr) == (b"HEAD", b"TAIL")


@pytest.mark.parametrize(
    "arguments",
    [{"command": ""}, {"command": "a\0"}, {"command": "x", "timeout_s": 0}, {"command": "x", "timeout_s": 9999}],
)
def test_unfit_arguments_are_refused(arguments: dict[str, object]) -> None:
    assert Toolbox(bash(FakeShell()).tools).check(call("execute", **arguments)) is not None  # type: ignore[arg-type]


async def test_timeout_call_id_and_eviction_limit_reach_the_shell() -> None:
    shell = FakeShell()
    await Toolbox(bash(shell, timeout_s=7).tools).execute(call("execute", command="x"), ToolContext("c9"))
    assert shell.settings == [{"timeout_s": 7, "call_id": "c9", "limit_chars": 80_000}]
