"""A function becomes a tool: what a model is shown of it, how it runs, and which functions are refused."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agent.messages import ToolResult
from agent.tools.tool import Tool, ToolContext, as_tool, tool
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import call, ran


async def called(made: Tool, **arguments: Any) -> ToolResult:
    return await ran(Toolbox([made]), call(made.name, **arguments))


def weather(city: Annotated[str, Field(description="a town")], days: int = 1) -> str:
    """Return the weather of a town.

    Only of the next week.
    """
    return f"{days} days of rain in {city}"


def test_a_model_is_shown_the_name_the_docstring_and_the_parameters() -> None:
    (spec,) = Toolbox([tool(weather)]).specs()
    assert (spec.name, spec.description) == ("weather", "Return the weather of a town.\n\nOnly of the next week.")
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "city": {"type": "string", "description": "a town"},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
    }


async def test_arguments_are_checked_and_defaults_filled_in() -> None:
    made = tool(weather)
    assert await called(made, city="Bern", days="2") == ToolResult(b"2 days of rain in Bern")
    assert await called(made, city="Bern") == ToolResult(b"1 days of rain in Bern")
    for wrong, said in (({}, "`city` is missing"), ({"city": "Bern", "hours": 1}, "no argument `hours`")):
        refused = await called(made, **wrong)
        assert refused.is_error
        assert said in refused.text()


async def test_a_decorator_may_give_another_name_and_description() -> None:
    @tool(name="look_up", description="Look it up.", read_only=True)
    async def find(what: str) -> str:
        return f"found {what}"

    assert (find.name, find.description, find.read_only) == ("look_up", "Look it up.", True)
    assert await called(find, what="x") == ToolResult(b"found x")


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_does_not() -> None:
    seen = []

    @tool
    def plain() -> None:
        """Run."""
        seen.append(threading.current_thread())

    @tool
    async def waiting() -> None:
        """Run."""
        await asyncio.sleep(0)
        seen.append(threading.current_thread())

    await called(plain)
    await called(waiting)
    assert (seen[0] is threading.main_thread(), seen[1] is threading.main_thread()) == (False, True)


async def test_the_context_of_the_call_is_given_and_not_shown() -> None:
    @tool
    def who(context: ToolContext, json: str = "x") -> str:
        """Tell the call."""
        return f"{context.call_id} {json}"

    (spec,) = Toolbox([who]).specs()
    assert list(spec.parameters["properties"]) == ["json"]  # type: ignore[arg-type]
    assert await called(who, json="y") == ToolResult(b"c1 y")


class Model(BaseModel):
    a: int


@dataclass
class Point:
    x: float


@pytest.mark.parametrize(
    "value, content",
    [
        ("half \ud800", b"half ?"),
        (b"\xff", b"\xff"),
        (None, b"null"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (Model(a=1), b'{"a":1}'),
        ([Point(0.5)], b'[{"x":0.5}]'),
    ],
)
async def test_what_a_function_returns_becomes_the_content(value: Any, content: bytes) -> None:
    @tool
    def give() -> Any:
        """Give it."""
        return value

    assert await called(give) == ToolResult(content)


async def test_a_result_stays_as_it_is_and_an_awaitable_is_awaited() -> None:
    result = ToolResult(b"no", is_error=True, note="why")

    async def later() -> ToolResult:
        return result

    @tool
    def give() -> Any:
        """Give it."""
        return later()

    assert await called(give) == result


async def test_what_a_function_raises_or_cannot_be_written_as_json_is_an_error_result() -> None:
    @tool
    def fail(*, how: str) -> object:
        """Fail."""
        if how == "raise":
            raise LookupError("there is none")
        return object()

    assert "there is none" in (await called(fail, how="raise")).text()
    assert (await called(fail, how="return")).is_error


def no_type(city) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Return it."""
    return str(city)


def many(*cities: str) -> None:
    """Return it."""


def named(**cities: str) -> None:
    """Return it."""


def by_position(city: str, /) -> None:
    """Return it."""


def unknown(city: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Return it."""


def unshowable(city: threading.Lock) -> None:
    """Return it."""


def hidden(_city: str) -> None:
    """Return it."""


def silent(city: str) -> None: ...


@pytest.mark.parametrize(
    "function, said",
    [
        (no_type, "tool no_type: .* the parameter city has no type"),
        (many, "cannot be given by name"),
        (named, "cannot be given by name"),
        (by_position, "cannot be given by name"),
        (unknown, "name 'Missing' is not defined"),
        (unshowable, "tool unshowable: its signature cannot be shown to a model"),
        (hidden, "the parameter _city: .* cannot be given by name"),
        (silent, "tool silent: there is no description"),
        ("weather", "neither a tool nor a function"),
        (Point, "neither a tool nor a function"),
    ],
)
def test_a_function_that_no_model_could_call_is_refused(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        tool(function)


def test_a_tool_stays_the_tool_it_is() -> None:
    made = tool(weather)
    assert as_tool(made) is made
    assert as_tool(weather).name == "weather"
