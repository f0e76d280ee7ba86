"""Every failure of a tool is a result that the model can act on."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, ConfigDict, Field

from agent.messages import ToolCall
from agent.tool import Tool, ToolContext, ToolResult
from agent.toolbox import Toolbox
from tests.unit.agent.fakes import call, done, tool


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
    fitting = call("look", path="a")
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


async def test_cancellation_passes_through() -> None:
    async def cancelled(*_: object) -> ToolResult:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Toolbox([tool("t", cancelled)]).execute(call("t"), ToolContext("c1"))
