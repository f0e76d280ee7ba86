"""Every failure of a tool is a result that the model can act on."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from agent.capabilities.todos import todos
from agent.messages import ToolCall, ToolResult
from agent.subagents.subagent import ParentTools
from agent.tools.tool import Tool, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, call, done, tool


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str
    limit: int = Field(5, ge=1)


BOX = Toolbox([Tool("look", "Look.", Arguments, done)])


def test_unfit_arguments_name_the_field_what_is_wrong_and_what_is_allowed() -> None:
    result = BOX.check(call("look", limit=0, file="x"))
    assert result is not None
    assert result.is_error
    text = result.text()
    assert "`path` is missing" in text
    assert "`limit`: input should be greater than or equal to 1, not 0" in text
    assert "there is no argument `file`" in text
    assert "look takes: path (string, required), limit (integer, default 5)" in text


def test_a_call_that_fits_passes_and_is_left_as_it_is() -> None:
    fitting = call("look", path="/a")
    assert BOX.check(fitting) is None
    assert BOX.normalised(fitting) is fitting


def test_an_unfit_call_is_not_normalised() -> None:
    unfit = ToolCall(id="c", name="look", arguments=None, raw_arguments="[")
    assert BOX.normalised(unfit) is unfit


def test_the_schema_has_the_arguments_and_no_titles() -> None:
    parameters = BOX.specs()[0].parameters
    assert parameters["required"] == ["path"]
    assert "title" not in str(parameters)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'t'"):
        Toolbox([tool("t", done), tool("t", done)])


@pytest.mark.parametrize(
    "error, message",
    [
        (FileNotFoundError("/a does not exist"), "/a does not exist"),
        (RuntimeError("lost it"), "the tool failed: lost it"),
        (KeyError(), "the tool failed: KeyError"),
    ],
)
async def test_what_a_tool_raises_becomes_an_error_result_without_a_traceback(error: Exception, message: str) -> None:
    async def fail(*_: object) -> ToolResult:
        raise error

    result = await Toolbox([tool("t", fail)]).execute(call("t"), ToolContext("c1"))
    assert (result.is_error, result.outcome, result.text()) == (True, "failed", message)


async def test_an_error_of_files_out_of_reach_says_how_the_call_ended() -> None:
    class OutOfReach(Exception):
        outcome = "daemon_lost"

    async def fail(*_: object) -> ToolResult:
        raise OutOfReach("the sandbox is gone")

    result = await Toolbox([tool("t", fail)]).execute(call("t"), ToolContext("c1"))
    assert (result.is_error, result.outcome, result.text()) == (True, "daemon_lost", "the sandbox is gone")


async def test_cancellation_passes_through() -> None:
    async def cancelled(*_: object) -> ToolResult:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Toolbox([tool("t", cancelled)]).execute(call("t"), ToolContext("c1"))


async def test_thousands_of_unknown_arguments_are_one_short_error() -> None:
    tools = Toolbox(todos().tools)
    refused = tools.check(call("write_todos", **{f"k{n}": n for n in range(10_000)}))
    assert refused is not None
    assert refused.text().startswith("10000 of the arguments are not known to write_todos")
    assert len(refused.content) < 1_000


async def test_many_problems_are_counted_not_listed() -> None:
    wrong: list[JsonValue] = [{"id": str(n), "title": "", "status": "x"} for n in range(100)]
    refused = Toolbox(todos().tools).check(call("write_todos", todos=wrong))
    assert refused is not None
    assert "and 190 more" in refused.text()


@pytest.mark.parametrize(
    "given, said",
    [
        ("text", "returned str"),
        (None, "returned NoneType"),
        (ToolResult("x"), "content that is no bytes"),  # type: ignore[arg-type]
    ],
)
async def test_a_tool_that_returns_something_else_is_named(given: object, said: str) -> None:
    async def wrong(_asked: AnyArguments, _context: ToolContext) -> object:
        return given

    result = await Toolbox((tool("weather", wrong),)).execute(call("weather"), ToolContext("c1"))
    assert result.is_error
    assert "the tool weather is faulty" in result.text()
    assert said in result.text()


async def test_a_tool_that_wants_to_end_the_process_does_not() -> None:
    async def leave(_asked: AnyArguments, _context: ToolContext) -> ToolResult:
        raise SystemExit(3)

    result = await Toolbox((tool("leave", leave),)).execute(call("leave"), ToolContext("c1"))
    assert result.is_error


async def test_edits_of_one_file_by_several_runs_are_all_kept() -> None:
    text = [b""]

    async def append(asked: AnyArguments, _context: ToolContext) -> ToolResult:
        before = text[0]
        await asyncio.sleep(0)  # another writer may come in here
        text[0] = before + str(asked.model_dump()["n"]).encode()
        return ToolResult(b"done")

    class WithPath(AnyArguments):
        path: str

    tools = Toolbox((Tool("append", "", WithPath, append, writes=True),))
    await asyncio.gather(*(tools.execute(call("append", path="a", n=n), ToolContext(str(n))) for n in range(9)))
    assert text == [b"012345678"]
    assert tools._locks == {}


def test_of_many_problems_a_few_are_named_and_of_very_many_only_the_number() -> None:
    class Numbers(BaseModel):
        numbers: list[int]

    box = Toolbox([Tool("add", "Add.", Numbers, done)])
    few, many = box.check(call("add", numbers=["x"] * 30)), box.check(call("add", numbers=["x"] * 1_001))
    assert few is not None
    assert few.text().count("unable to parse string") == 10
    assert "and 20 more" in few.text()
    assert many is not None
    assert "1001 of their values are wrong" in many.text()


@pytest.mark.parametrize("lent", [False, True])
def test_of_many_tools_an_unknown_one_is_told_fifty(lent: bool) -> None:
    box = Toolbox(tool(f"t{number}", done) for number in range(60))
    result = (ParentTools(box, None, ()) if lent else box).check(call("x" * 10_000))
    assert result is not None
    assert "t49 and 10 more" in result.text()
    assert len(result.content) < 1_000
