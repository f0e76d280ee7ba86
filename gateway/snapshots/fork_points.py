"""Where a thread can be forked: its messages by then, and the snapshot of its files at that moment.

A step that called tools and has a snapshot is such a point. So is a step after it that called none, and with it the
run's end, as the files were the same. For any other moment, the error names the nearest points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import NotFound, ThreadBusy, WorkspaceNotSaved
from gateway.storage.restore_store import ForkStore
from gateway.storage.snapshot_store import Snapshot, SnapshotStore
from gateway.storage.stored_message import read_message
from gateway.storage.thread_store import MessageRow, ThreadRow

# More messages than a step can have.
_STEP_MESSAGES = 2_000
_SHOWN = 5


@dataclass(frozen=True)
class ForkPoint:
    """The first `messages` of a thread, and its files then; `step` of `run_id` was the last, 0 and "" for none."""

    snapshot: Snapshot
    messages: int
    run_id: str = ""
    step: int = 0


class ForkPoints:
    """Finds the points of threads."""

    def __init__(self, snapshots: SnapshotStore, store: ForkStore) -> None:
        self._snapshots = snapshots
        self._store = store

    async def of_snapshot(self, snapshot: Snapshot) -> ForkPoint:
        """Return the point at which a snapshot was taken."""
        messages = await self._whole(snapshot.thread_id, snapshot.messages)
        return ForkPoint(snapshot, messages, snapshot.run_id, snapshot.step)

    async def of_run(self, row: ThreadRow, run_id: str, step: int | None) -> ForkPoint:
        """Return the end of a run, or of one of its steps.

        NotFound for a run without messages in the thread, WorkspaceNotSaved if the files are not known.
        """
        said = await self._store.said_in(row.id, run_id, 0)
        if not said:
            raise NotFound(f"run {run_id[:64]!r} has no messages in thread {row.name!r}")
        if step is None and row.run_id == run_id:
            raise ThreadBusy(f"run {run_id} has not finished: wait for it, or fork at one of its steps", run_id=run_id)
        kept = [one for one in await self._snapshots.of_thread(row.id) if one.run_id == run_id and one.step]
        before = max((one for one in kept if step is None or one.step <= step), key=lambda one: one.step, default=None)
        if before is not None and before.step == step:
            return await self.of_snapshot(before)
        if before is not None:
            count, reached = _without_tools([one for one in said if one.position >= before.messages], before, step)
            if count is not None:
                return ForkPoint(before, count, run_id, reached)
        raise _not_saved(row, run_id, step, kept)

    async def _whole(self, thread_id: str, count: int) -> int:
        """Return how many of the first messages leave no call without its answer."""
        last = await self._store.last_said(thread_id, count, _STEP_MESSAGES)
        answered: set[str | None] = set()
        for one in reversed(last):
            message = read_message(one.message).message
            if message is None or message.role != "tool":
                asked = {call.id for call in message.tool_calls} if message is not None else set()
                return one.position if asked - answered else count
            answered.add(message.tool_call_id)
        return count


def _without_tools(said: Sequence[MessageRow], before: Snapshot, step: int | None) -> tuple[int | None, int]:
    """Return how many messages there are up to a step or the end, and its number; None if tools were called."""
    count, reached = before.messages, before.step
    for one in said:
        message = read_message(one.message).message
        if message is None or message.role == "tool" or message.tool_calls:
            return None, reached
        if message.role == "assistant":
            if reached == step:
                break
            reached += 1
        count = one.position + 1
    return (count, reached) if step in (None, reached) else (None, reached)


def _not_saved(row: ThreadRow, run_id: str, step: int | None, kept: Sequence[Snapshot]) -> WorkspaceNotSaved:
    near = sorted(kept, key=lambda one: (abs(one.step - step) if step is not None else -one.step, one.step))[:_SHOWN]
    nearest = ", ".join(str(one.step) for one in sorted(near, key=lambda one: one.step))
    at = "at its end" if step is None else f"after step {step}"
    known = (
        f"the nearest steps of it that were kept: {nearest}"
        if near
        else "none of its steps was kept: set `snapshots: step` in the policy's sandbox section for runs to come"
    )
    return WorkspaceNotSaved(
        f"the files of thread {row.name!r} {at} of run {run_id} were not saved; {known}. Or fork a snapshot, or "
        "the current state of the thread",
        nearest=nearest,
    )
