"""Every failure of a tool is a result that the model can act on."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_serializer

from agent.capabilities.todos import todos
from agent.messages import ToolCall, ToolResult
from agent.subagents.subagent import ParentTools
from agent.tools.tool import Tool, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, call, done, ran, tool


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str
    limit: int = Field(5, ge=1)


BOX = Toolbox([Tool("look", "Look.", Arguments, done)])


def test_unfit_arguments_name_the_field_what_is_wrong_and_what_is_allowed() -> None:
    result = BOX.prepare(call("look", limit=0, file="x")).unfit
    assert result is not None
    assert result.is_error
    text = result.text()
    assert "`path` is missing" in text
    assert "`limit`: input should be greater than or equal to 1, not 0" in text
    assert "there is no argument `file`" in text
    assert "look takes: path (string, required), limit (integer, default 5)" in text


def test_a_call_that_fits_passes_and_is_left_as_it_is() -> None:
    fitting = call("look", path="/a")
    prepared = BOX.prepare(fitting)
    assert prepared.unfit is None
    assert prepared.call == fitting
    assert prepared.model == Arguments(path="/a")
    assert prepared.canonical == b'{"path":"/a"}'
    assert prepared.digest == hashlib.sha256(prepared.canonical).hexdigest()


def test_an_unfit_call_is_judged_as_it_came() -> None:
    unfit = ToolCall(id="c", name="look", arguments=None, raw_arguments="[")
    assert BOX.prepare(unfit).call is unfit


def test_policy_sees_what_the_tool_is_given_whatever_the_model_of_its_arguments_shows() -> None:
    class Hides(BaseModel):
        path: str = Field(exclude=True)
        at: datetime
        names: set[str]

        @field_serializer("at")
        def _later(self, _: datetime) -> str:
            return "later"

    asked = call("t", path="x", at="2026-01-02T00:00:00", names=["a"])
    prepared = Toolbox([Tool("t", "d", Hides, done)]).prepare(asked)
    assert prepared.call.arguments == {"path": "/workspace/x", "at": "2026-01-02T00:00:00", "names": ["a"]}
    assert prepared.unfit is None


@pytest.mark.parametrize("sent", [1, 1.0, [1, True]])
def test_policy_sees_true_where_a_number_became_true(sent: JsonValue) -> None:
    class Switches(BaseModel):
        every: bool | list[bool] = False

    switches = Toolbox([Tool("switch", "Switch.", Switches, done)])
    prepared = switches.prepare(call("switch", every=sent))
    assert prepared.validated(Switches).every == sent
    assert b"1" not in prepared.canonical
    assert b"true" in prepared.canonical


async def test_a_tool_may_change_its_arguments_and_a_second_run_of_the_call_has_those_that_were_judged() -> None:
    seen: list[object] = []

    async def changes(asked: Any, _context: ToolContext) -> ToolResult:
        seen.append(asked.names[:])
        asked.names.append(asked.extra.pop("k"))
        return ToolResult(b"")

    class Names(BaseModel):
        names: list[str]
        extra: Any

    box = Toolbox([Tool("t", "d", Names, changes)])
    prepared = box.prepare(call("t", names=["a"], extra={"k": "v"}))
    for _ in range(2):
        result = await box.execute(prepared, ToolContext("c1"))
        assert not result.is_error, result.text()
    assert seen == [["a"], ["a"]]


def test_arguments_that_cannot_be_written_as_json_are_unfit() -> None:
    class Odd(BaseModel):
        n: Annotated[Any, AfterValidator(lambda _: object())]

    prepared = Toolbox([Tool("t", "d", Odd, done)]).prepare(call("t", n=1))
    assert prepared.unfit is not None
    assert "cannot be written as JSON" in prepared.unfit.text()


def test_the_schema_has_the_arguments_and_no_titles() -> None:
    parameters = BOX.specs()[0].parameters
    assert parameters["required"] == ["path"]
    assert "title" not in str(parameters)


def test_a_changed_schema_is_not_that_of_the_next_toolbox() -> None:
    (spec,) = Toolbox([tool("t", done)]).specs()
    before = dict(spec.parameters)
    spec.parameters.clear()
    assert Toolbox([tool("t", done)]).specs()[0].parameters == before


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

    result = await ran(Toolbox([tool("t", fail)]), call("t"))
    assert (result.is_error, result.outcome, result.text()) == (True, "failed", message)


async def test_an_error_of_files_out_of_reach_says_how_the_call_ended() -> None:
    class OutOfReach(Exception):
        outcome = "daemon_lost"

    async def fail(*_: object) -> ToolResult:
        raise OutOfReach("the sandbox is gone")

    result = await ran(Toolbox([tool("t", fail)]), call("t"))
    assert (result.is_error, result.outcome, result.text()) == (True, "daemon_lost", "the sandbox is gone")


async def test_cancellation_passes_through() -> None:
    async def cancelled(*_: object) -> ToolResult:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ran(Toolbox([tool("t", cancelled)]), call("t"))


async def test_thousands_of_unknown_arguments_are_one_short_error() -> None:
    tools = Toolbox(todos().tools)
    refused = tools.prepare(call("write_todos", **{f"k{n}": n for n in range(10_000)})).unfit
    assert refused is not None
    assert refused.text().startswith("10000 of the arguments are not known to write_todos")
    assert len(refused.content) < 1_000


async def test_many_problems_are_counted_not_listed() -> None:
    wrong: list[JsonValue] = [{"id": str(n), "title": "", "status": "x"} for n in range(100)]
    refused = Toolbox(todos().tools).prepare(call("write_todos", todos=wrong)).unfit
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

    result = await ran(Toolbox((tool("weather", wrong),)), call("weather"))
    assert result.is_error
    assert "the tool weather has a bug" in result.text()
    assert said in result.text()


async def test_a_tool_that_wants_to_end_the_process_does_not() -> None:
    async def leave(_asked: AnyArguments, _context: ToolContext) -> ToolResult:
        raise SystemExit(3)

    result = await ran(Toolbox((tool("leave", leave),)), call("leave"))
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
    await asyncio.gather(*(ran(tools, call("append", path="a", n=n)) for n in range(9)))
    assert text == [b"012345678"]
    assert tools._locks == {}


def test_of_many_problems_a_few_are_named_and_of_very_many_only_the_number() -> None:
    class Numbers(BaseModel):
        numbers: list[int]

    box = Toolbox([Tool("add", "Add.", Numbers, done)])
    few, many = (box.prepare(call("add", numbers=["x"] * many)).unfit for many in (30, 1_001))
    assert few is not None
    assert few.text().count("unable to parse string") == 10
    assert "and 20 more" in few.text()
    assert many is not None
    assert "1001 of their values are wrong" in many.text()


@pytest.mark.parametrize("of_parent", [False, True])
def test_an_unknown_tool_among_many_is_answered_with_fifty_names(of_parent: bool) -> None:
    box = Toolbox(tool(f"t{number}", done) for number in range(60))
    result = (ParentTools(box, None, ()) if of_parent else box).prepare(call("x" * 10_000)).unfit
    assert result is not None
    assert "t49 and 10 more" in result.text()
    assert len(result.content) < 1_000
