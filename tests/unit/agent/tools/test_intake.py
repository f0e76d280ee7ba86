"""What a tool call may hold, before anything else looks at it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities.todos import todos
from agent.messages import Message, ToolCall, storable_message
from agent.state import AgentState
from agent.tools.intake import (
    ARGUMENTS_LIMIT_CHARS,
    ARGUMENTS_LIMIT_DEPTH,
    ARGUMENTS_LIMIT_VALUES,
    NAME_LIMIT_CHARS,
    bounded,
)
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import call


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "asked, said",
    [
        (call("t", a=list(range(ARGUMENTS_LIMIT_VALUES))), "hold more than 20,000 values"),
        (call("t", **{f"k{n}": n for n in range(ARGUMENTS_LIMIT_VALUES + 1)}), "hold more than 20,000 values"),
        (call("t", a=nested(ARGUMENTS_LIMIT_DEPTH)), "are nested more than 96 deep"),
        (call("t", a=[float("nan")]), "hold NaN or Infinity"),
        (call("t", a={"b": float("inf")}), "hold NaN or Infinity"),
        (
            call("t").model_copy(update={"raw_arguments": "x" * (ARGUMENTS_LIMIT_CHARS + 1)}),
            "have 4,194,305 characters, the limit is 4,194,304",
        ),
    ],
)
def test_what_is_absurd_is_refused_once_and_reported_as_that(asked: ToolCall, said: str) -> None:
    refused = bounded(asked)
    assert refused.arguments is None
    assert said in refused.problem
    assert len(refused.raw_arguments) <= 1000
    reported = Toolbox(todos().tools).prepare(refused.model_copy(update={"name": "write_todos"})).unfit
    assert reported is not None
    assert reported.text().startswith(f"the arguments of write_todos {refused.problem}")


def test_a_name_is_short_and_printable_whatever_the_model_wrote() -> None:
    assert bounded(call("ls")).name == "ls"
    assert len(bounded(call("n" * 1_000_000)).name) == NAME_LIMIT_CHARS
    assert bounded(call("\0" * 1_000_000)).name.isprintable()
    assert len(bounded(call("\0" * 1_000_000)).name) <= NAME_LIMIT_CHARS


def test_what_fits_passes_as_it_is() -> None:
    asked = call("t", a=nested(ARGUMENTS_LIMIT_DEPTH - 2), b={"c": ["d", 1, None, True]})
    assert bounded(asked) is asked


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.integers(0, ARGUMENTS_LIMIT_DEPTH + 5))
def test_a_state_with_what_passed_always_comes_back_the_same(arguments: dict[str, Any], depth: int) -> None:
    passed = bounded(call("t", deep=nested(depth), **{f"a{name}": value for name, value in arguments.items()}))
    message = storable_message(Message(role="assistant", tool_calls=(passed,)))
    state = AgentState(run_id="r", thread="t", messages=(message,))
    assert AgentState.model_validate_json(state.model_dump_json()) == state
