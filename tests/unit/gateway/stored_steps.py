"""The steps of a thread, stored at once and by themselves: for tests of what is kept, without a run's log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agent.messages import Message
from agent.state import AgentState
from gateway.storage.entities import Thread
from gateway.storage.run_writes import KeptStep, step_writes
from gateway.storage.store import Store


async def keep_step(
    store: Store,
    thread: Thread,
    run_id: str,
    position: int,
    said: Sequence[Message],
    *,
    changed: Mapping[str, str] | None = None,
    removed: Collection[str] = (),
) -> None:
    """Append messages from `position` on and change the thread's metadata, atomically, as the write of a run does."""
    writes = step_writes(run_id, KeptStep(thread, position, said, changed or {}, removed), store.clock())
    if writes:
        await store._database.write(*writes)


class StoredSteps:
    """Satisfies gateway.runs.checkpoints.Steps."""

    def __init__(self, store: Store, run_id: str = "r1") -> None:
        self._store = store
        self._run_id = run_id

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step."""
        await self.keep_last(step, state)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store a step."""
        del state
        await keep_step(
            self._store, step.thread, self._run_id, step.position, step.said, changed=step.changed, removed=step.removed
        )
