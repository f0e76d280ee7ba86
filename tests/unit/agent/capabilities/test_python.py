"""execute_python over a fake interpreter: what the model reads, what becomes a file, and what a service gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agent.capabilities.python import PythonFiles, python
from agent.filesystem import CellResult
from agent.messages import ToolCall, ToolResult
from agent.tools.eviction import Eviction
from agent.tools.tool import ToolContext
from agent.tools.toolbox import Toolbox
from sandbox.interpreter import cell
from sandbox.protocols import OutputPiece
from tests.made_images import png, png_header
from tests.unit.agent.fakes import FakeFiles


@dataclass
class FakePython(FakeFiles):
    """Files, and an interpreter that ends every cell alike."""

    done: cell.CellResult
    asked: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        FakeFiles.__init__(self)

    async def run_python(self, code: str, **asked: Any) -> CellResult:
        self.asked = {"code": code, **asked}
        return self.done


async def ran(workspace: FakePython, arguments: Mapping[str, Any], **options: Any) -> ToolResult:
    tools = Toolbox(python(cast(PythonFiles, workspace), **options).tools)
    call = tools.prepare(ToolCall(id="call_1", name="execute_python", arguments=dict(arguments)))
    return await tools.execute(call, ToolContext("call_1"))


def shown(text: str, **more: Any) -> cell.ShownObject:
    return cell.ShownObject({"text/plain": text}, **more)


async def test_the_model_reads_output_then_objects_then_the_traceback() -> None:
    pieces = (OutputPiece("stdout", b"out\n"), OutputPiece("stderr", b"err"))
    error = cell.CellError("E", "why", "Traceback\nE: why")
    done = cell.CellResult("failed", output=pieces, objects=(shown("obj"),), error=error, count=4, notes=("one", "two"))
    result = await ran(FakePython(done), {"code": "x"})
    assert result.content == b"out\nerr\nobj\nTraceback\nE: why"
    assert (result.stdout, result.stderr, result.note) == (b"out\n", b"err", "[one]\n[two]")
    assert (result.is_error, result.outcome) == (True, "failed")
    assert result.structured == {
        "context": "default",
        "execution_count": 4,
        "results": [{"texts": {"text/plain": "obj"}, "image": None, "is_main_result": False}],
        "error": {"name": "E", "value": "why", "traceback": "Traceback\nE: why"},
    }


async def test_images_become_files_and_damaged_ones_or_too_many_are_said_to_be_left_out() -> None:
    images = (b"junk", png_header(100_000, 100_000), *(png(shade=shade) for shade in range(9)))
    workspace = FakePython(cell.CellResult("completed", objects=tuple(shown("o", image=one) for one in images)))
    result = await ran(workspace, {"code": "x"})
    paths = [f"/workspace/.airlock/output/call_1-{number}.png" for number in range(1, 9)]
    assert [one.path for one in result.attachments] == paths
    assert workspace.files[paths[0]] == png(shade=0)
    assert result.note.count("an image was not kept") == 3
    assert f"[image: {paths[7]}]" in result.content.decode()
    without = await ran(workspace, {"code": "x"}, shows_images=False)
    assert (without.attachments, paths[0] in without.content.decode()) == ((), True)


async def test_of_output_that_will_be_evicted_the_streams_are_the_ends() -> None:
    pieces = tuple(OutputPiece("stdout", bytes([65 + number]) * 50) for number in range(20))
    done = cell.CellResult("completed", output=pieces, tail=(OutputPiece("stdout", b"end"),), left_out_bytes=7)
    result = await ran(FakePython(done), {"code": "x"}, eviction=Eviction(500, 100, 60))
    assert result.stdout == b"A" * 50 + b"B" * 50 + b"T" * 50 + b"end"
    assert b"[... 7 bytes left out ...]\nend" in result.content


async def test_arguments_are_checked_and_passed_on() -> None:
    workspace = FakePython(cell.CellResult("completed"))
    await ran(workspace, {"code": "x", "context": "c", "restart": True, "timeout_s": 3}, eviction=Eviction(900, 1, 1))
    kept = ("code", "interpreter", "restart", "timeout_s", "live_limit_bytes")
    assert [workspace.asked[name] for name in kept] == ["x", "c", True, 3, 900]
    for arguments, problem in (
        ({}, "code is missing"),
        ({"code": "x", "context": "../x"}, "context"),
        ({"code": "x" * 200_001}, "code"),
        ({"code": "'\ud800'"}, "valid string"),
        ({"code": "x", "timeout_s": 601}, "timeout_s"),
    ):
        refused = await ran(workspace, arguments)
        assert (refused.is_error, problem in refused.content.decode()) == (True, True), refused
