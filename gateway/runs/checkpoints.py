"""The state that a run continues from when its gateway is lost: written with the run's log, read by the next gateway.

    between two steps     the thread with all that the last step added, and the state without a step in flight
    the model answered    the same, and the step with its calls, before any of them begins (agent.tools.recovery)

The results of a step's calls are in the journal (gateway/tool_calls/journal.py) until the step is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agent.messages import ToolCall
from agent.state import AgentState
from agent.tools.recovery import EarlierCall
from gateway.runs.run_log import RunLog
from gateway.runs.suspended_run import SuspendedRun
from gateway.runs.thread_history import ThreadHistoryHook
from gateway.storage.run_writes import KeptStep
from gateway.tool_calls.journal import JournalHook


class Checkpoints:
    """The Recovery of one run, and the Steps of its thread."""

    def __init__(
        self,
        log: RunLog,
        journal: JournalHook,
        policy: str,
        taken_up: SuspendedRun | None = None,
    ) -> None:
        """`policy` is what the run is pinned to, `taken_up` the checkpoint that it was taken over at."""
        self._taken_up = taken_up
        self._log = log
        self._journal = journal
        self._policy = policy
        self.history: ThreadHistoryHook

    def stored(self, state: AgentState, more: int = 0) -> str:
        """Return the text of a state to store, with the number of the last event, plus `more`."""
        return SuspendedRun.of(state, self._policy, self._sequence(state, more)).model_dump_json()

    def _sequence(self, state: AgentState, more: int) -> int:
        was = self._taken_up
        if was is not None and (state.steps, state.pending) == (was.state.steps, None) and was.state.pending is None:
            # The state that it was taken over at: an earlier gateway may have logged some of what follows.
            return was.sequence
        return self._log.sequence + more

    # --- gateway.runs.thread_history.Steps ---

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step and its state; between two steps, the results of the last step's calls are no longer needed."""
        forget = _calls_of(step) if state.pending is None else ()
        await self._log.checkpoint(self.stored(state), step, forget)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store the last step with the run's end."""
        del state
        self._log.keep_last(step, _calls_of(step))

    # --- agent.tools.recovery.Recovery ---

    async def answered(self, state: AgentState) -> None:
        """Store the step with the model's answer."""
        await self.history.keep(state)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the journal's entries of the calls of a step that continues."""
        return await self._journal.hosted.earlier(calls)


def _calls_of(step: KeptStep) -> Collection[str]:
    """Return the ids of the calls that a step has the results of."""
    return [message.tool_call_id for message in step.said if message.tool_call_id is not None]
