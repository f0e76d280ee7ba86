"""Recovery of a run whose process was lost: what is stored during a run, and what is known of calls that had started.

    before_step       a hook stores the state between two steps, with everything that the last step changed
    model answered    Recovery.answered stores the state with `pending`, before any call of the step starts
    each call         a hook journals its start and its result, before anything else sees either

Agent.run resumes from either state, in any process. For a step with `pending`, Recovery.earlier returns the calls that
ran before: they are neither judged nor run again, and after_tool_use sees their stored results as new ones. All other
calls run normally, under the same id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, Verdict

INTERRUPTED = "interrupted"
"""The outcome of a call that was running when its process was lost."""


@dataclass(frozen=True)
class EarlierCall:
    """A call that an earlier process ran, before after_tool_use."""

    result: ToolResult
    verdict: Verdict
    duration_s: float = 0.0
    approval_id: str = ""


class Recovery(Protocol):
    """Stores a run's progress, and knows the calls of an earlier process."""

    async def answered(self, state: AgentState) -> None:
        """Store a state with `pending`. No call starts before that, so it retries until it succeeds."""
        ...

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the calls of a resumed step that must not run again, by id."""
        ...
