"""Conditions on the state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import discard
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook, Matcher, tool_glob, tool_name
from agent.state import AgentState, CurrentExecution
from tests.unit.agent.fakes import call, execution_of, state


@pytest.mark.parametrize(
    "matcher, name, matches",
    [
        (tool_name("bash"), "bash", True),
        (tool_name("bash"), "bash_admin", False),
        (tool_name("b*"), "bash", False),
        (tool_glob("b*"), "bash", True),
        (tool_glob("b*"), "BASH", False),
        (tool_name("a") | tool_name("bash"), "bash", True),
        (tool_name("a") & tool_glob("*"), "bash", False),
        (~tool_name("a"), "bash", True),
    ],
)
def test_tool_matchers(matcher: Matcher, name: str, matches: bool) -> None:
    assert matcher(about(name)) is matches


def about(name: str) -> AgentState:
    """Return a state at a tool point, about a call of this tool."""
    asked = call(name)
    return state(current=CurrentExecution(tool_executions=(execution_of(asked),), tool_index=0))


# Names that look like patterns, and names that another one begins or ends with.
NAMES = st.sampled_from(["bash", "bash_admin", "my_bash", "BASH", "b*", "ba.h", "[b]ash", "bash\n", " bash", "", "*"])


@given(NAMES | st.text(max_size=8), NAMES | st.text(max_size=8))
def test_exact_means_exact_whatever_the_name_looks_like(name: str, called: str) -> None:
    assert tool_name(name)(about(called)) is (name == called)


@given(NAMES, NAMES, NAMES)
def test_matchers_combine_as_logic_does(left: str, right: str, called: str) -> None:
    a, b, about_it = tool_name(left), tool_name(right), about(called)
    assert (a & b)(about_it) is (left == called and right == called)
    assert (a | b)(about_it) is (called in (left, right))
    assert (~(a | b))(about_it) is (~a & ~b)(about_it)
    assert (~~a)(about_it) is a(about_it)


@pytest.mark.parametrize(
    "pattern, matching, other",
    [
        ("run_*", "run_tests", "dry_run_tests"),
        ("?s", "ls", "lss"),
        ("[!a]*", "bash", "awk"),
        ("bash", "bash", "bash\n"),
    ],
)
def test_a_glob_covers_the_whole_name(pattern: str, matching: str, other: str) -> None:
    assert tool_glob(pattern)(about(matching))
    assert not tool_glob(pattern)(about(other))


def test_the_right_side_is_not_asked_where_the_left_one_decides() -> None:
    def never(given_state: AgentState) -> bool:
        raise AssertionError

    assert not (tool_name("a") & Matcher(never))(about("b"))
    assert (tool_name("a") | Matcher(never))(about("a"))


async def test_a_hook_runs_for_what_it_matches_and_costs_nothing_else() -> None:
    seen: list[str] = []

    class WatchesShell(Hook):
        when = tool_name("execute") | tool_glob("run_*") & ~Matcher(lambda state: "quiet" in state.metadata)

        async def before_tool_use(self, state: AgentState) -> AgentState:
            seen.append(state.current.tool.call.name)
            return state

        async def before_step(self, state: AgentState) -> AgentState:
            raise AssertionError("no tool is in question at a step's beginning")

    engine = HookEngine([WatchesShell()])
    for name in ("execute", "execute_all", "run_tests", "ls"):
        await engine.run("before_tool_use", about(name), discard)
        await engine.run("before_tool_use", about(name).with_metadata("quiet", True), discard)
    await engine.run("before_step", state(), discard)
    assert seen == ["execute", "execute", "run_tests"]


def test_no_tool_matches_outside_the_tool_points() -> None:
    assert not tool_glob("*")(state())
