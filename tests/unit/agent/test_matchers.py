"""Conditions on the state."""

from __future__ import annotations

import pytest

from agent.matchers import Matcher, metadata_key, step_kind, tool_glob, tool_name, tool_regex
from agent.state import CurrentExecution, ToolExecution
from tests.unit.agent.fakes import call, says, state


@pytest.mark.parametrize(
    "matcher, name, matches",
    [
        (tool_name("bash"), "bash", True),
        (tool_name("bash"), "bash_admin", False),
        (tool_name("b*"), "bash", False),
        (tool_glob("b*"), "bash", True),
        (tool_glob("b*"), "BASH", False),
        (tool_regex("ba.h"), "bash", True),
        (tool_regex("ba"), "bash", False),
        (tool_name("a") | tool_name("bash"), "bash", True),
        (tool_name("a") & tool_glob("*"), "bash", False),
        (~tool_name("a"), "bash", True),
    ],
)
def test_tool_matchers(matcher: Matcher, name: str, matches: bool) -> None:
    asked = call(name)
    current = CurrentExecution(tool_executions=(ToolExecution(asked, asked),), tool_index=0)
    assert matcher(state(current=current)) is matches


def test_no_tool_matches_outside_the_tool_points() -> None:
    assert not tool_glob("*")(state())


def test_step_kind_tells_tool_use_from_an_answer() -> None:
    asking, answering = state().with_response(says("", call("t"))), state().with_response(says("hi"))
    assert step_kind("tool_use")(asking)
    assert not step_kind("answer")(asking)
    assert step_kind("answer")(answering)
    assert not step_kind("answer")(state())


def test_metadata_key_asks_for_the_key_whatever_its_value() -> None:
    assert metadata_key("k")(state().with_metadata("k", None))
    assert not metadata_key("k")(state())
