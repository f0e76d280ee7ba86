"""The steps of a thread, stored at once and by themselves: for tests of what is kept, without a run's log."""

from __future__ import annotations

from agent.state import AgentState
from gateway.storage.run_writes import KeptStep
from gateway.storage.store import Store


class StoredSteps:
    """Satisfies gateway.runs.thread_history.Steps."""

    def __init__(self, store: Store, run_id: str = "r1") -> None:
        self._store = store
        self._run_id = run_id

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step."""
        await self.keep_last(step, state)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store a step."""
        del state
        await self._store.keep_step(
            step.thread, self._run_id, step.position, step.said, changed=step.changed, removed=step.removed
        )
