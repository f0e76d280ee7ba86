"""Conditions on the state, for Hook.when; they combine with &, | and ~.

    class WatchShell(Hook):
        when = tool_name("execute") | tool_glob("run_*")

Exact means exact: tool_name("bash") does not match "bash_admin". No tool matches outside the two tool points. Any other
condition is a function: Matcher(lambda state: "quiet" in state.metadata).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.state import AgentState


@dataclass(frozen=True)
class Matcher:
    """A condition on the state."""

    test: Callable[[AgentState], bool]

    def __call__(self, state: AgentState) -> bool:
        return self.test(state)

    def __and__(self, other: Matcher) -> Matcher:
        return Matcher(lambda state: self(state) and other(state))

    def __or__(self, other: Matcher) -> Matcher:
        return Matcher(lambda state: self(state) or other(state))

    def __invert__(self) -> Matcher:
        return Matcher(lambda state: not self(state))


def tool_name(name: str) -> Matcher:
    """Match a call of the tool with exactly this name."""
    return _tool(lambda called: called == name)


def tool_glob(pattern: str) -> Matcher:
    """Match when the whole tool name matches a shell-style pattern, case-sensitively."""
    return _tool(lambda called: fnmatchcase(called, pattern))


def _tool(test: Callable[[str], bool]) -> Matcher:
    def on_state(state: AgentState) -> bool:
        return state.current.tool_index is not None and test(state.current.tool.call.name)

    return Matcher(on_state)
