"""Recovery of a run whose process was lost: what is kept of it on its way, and what is known of calls that had begun.

    before_step       all that the last step said and changed is kept by a hook, with the state between two steps
    model answered    Recovery.answered: the state with `pending`, before any call of the step begins
    each call         its journal is a hook's: that it begins, and its result, before anybody sees either

A state of either kind goes on in Agent.run, in any process. A step with `pending` asks Recovery.earlier what became of
its calls: one with an entry is not judged and not run again, its result is what the entry says, and the after pass sees
it as if it had just come. One without goes its normal way, under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.decisions import Verdict
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState

INTERRUPTED = "interrupted"
"""The outcome of a call that was under way when its process was lost."""


@dataclass(frozen=True)
class EarlierCall:
    """What an earlier process made of a call, as it was before the after pass."""

    result: ToolResult
    verdict: Verdict
    duration_s: float = 0.0
    approval_id: str = ""


class Recovery(Protocol):
    """Keeps a run's way, and knows what an earlier process did of it."""

    async def answered(self, state: AgentState) -> None:
        """Keep a state with `pending`. No call begins before it is kept, so it does not give up."""
        ...

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return what became of the calls of a step that goes on, by their ids: of those that must not run again."""
        ...
