"""What is written of a run under way: all of it in one transaction, and only by whoever hosts the run.

A run is hosted under an epoch, which grows whenever a gateway takes it. Each write is done only if the epoch is still
the writer's: a gateway that was thought lost and is back writes nothing any more. Writers take turns
(gateway/storage/database.py), so that no taking over comes in between the look and the write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Insert, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agent.events import Event
from agent.messages import Message
from gateway.storage.database import Write
from gateway.storage.entities import LoggedEvent, Thread
from gateway.storage.stored_message import stored_text
from gateway.storage.tables import events, holds, messages, runs, thread_metadata, threads, tool_calls

_REMOVE_METADATA = delete(thread_metadata).where(
    thread_metadata.c.thread_id == bindparam("in_thread"), thread_metadata.c.key == bindparam("named")
)
_ADD_EVENTS: Mapping[str, Insert] = {
    "sqlite": sqlite.insert(events).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(events).on_conflict_do_nothing(),
}
# When a thread was last added to is what retention goes by.
_USED = update(threads).where(threads.c.id == bindparam("of_thread")).values(used_us=bindparam("at_us"))
_FORGET_RESULT = update(tool_calls).where(tool_calls.c.id == bindparam("kept_id")).values(result=None)
_FREE_PLACE = delete(holds).where(holds.c.id == bindparam("ended_id"))
# On the path of every call, so it is built once.
_IS_OURS = select(runs.c.id).where(
    runs.c.id == bindparam("of_run"), runs.c.epoch == bindparam("of_epoch"), runs.c.status == "running"
)


class LeaseLost(Exception):
    """Another gateway has the run: what was to be written was not, and the run is to end here without a word."""


@dataclass(frozen=True)
class Claim:
    """A run that this process hosts, under this epoch."""

    run_id: str
    epoch: int = 0


@dataclass(frozen=True)
class KeptStep:
    """What a step adds to its thread: messages from `position` on, and metadata as JSON texts by their keys."""

    thread: Thread
    position: int
    said: Sequence[Message] = ()
    changed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    removed: Collection[str] = ()


@dataclass(frozen=True)
class RunWrite:
    """What is written of a run at once.

    `finished` is the last of `events` where it ends the run. `checkpoint` is the state that the run goes on from, as
    JSON; with `waits` nobody hosts the run until something of it is answered. `forget` names calls whose results need
    not be known any more.
    """

    events: Sequence[LoggedEvent] = ()
    finished: Event | None = None
    checkpoint: str | None = None
    waits: bool = False
    step: KeptStep | None = None
    forget: Collection[str] = ()


def check_claim(connection: Connection, claim: Claim) -> None:
    """Raise LeaseLost unless the run is ours still; it stays so until the transaction ends."""
    if connection.execute(_IS_OURS, {"of_run": claim.run_id, "of_epoch": claim.epoch}).first() is None:
        raise LeaseLost(claim.run_id)


def write_run(connection: Connection, claim: Claim, write: RunWrite, now_us: Callable[[], int]) -> bool:
    """Write it, or raise LeaseLost; return False where it was the run's end, or the begin of its wait, and is written.

    To do it twice is the same as once: a commit whose connection was lost may or may not have been done.
    """
    ours = (runs.c.id == claim.run_id) & (runs.c.epoch == claim.epoch)
    changes = _changes(claim, write)
    if not connection.execute(update(runs).where(ours, runs.c.status == "running").values(**changes)).rowcount:
        as_left = [runs.c[name] == changes[name] for name in ("status", "last_sequence") if name in changes]
        if "status" in changes and connection.execute(select(runs.c.id).where(ours, *as_left)).first() is not None:
            return False
        raise LeaseLost(claim.run_id)
    if write.events:
        rows = [
            {"run_id": claim.run_id, "sequence": e.sequence, "type": e.type, "at_us": e.at_us, "payload": e.payload}
            for e in write.events
        ]
        connection.execute(_ADD_EVENTS[connection.dialect.name], rows)
    if write.step is not None:
        for statement, parameters in step_writes(claim.run_id, write.step, now_us()):
            connection.execute(statement, parameters)
    if write.forget:
        connection.execute(_FORGET_RESULT, [{"kept_id": call_id} for call_id in write.forget])
    if write.finished is not None:
        # With the end and not after it: whoever sees the end may start the next run, and finds the place free.
        connection.execute(_FREE_PLACE, {"ended_id": claim.run_id})
    return True


def _changes(claim: Claim, write: RunWrite) -> dict[str, Any]:
    changes: dict[str, Any] = {"last_sequence": write.events[-1].sequence} if write.events else {"epoch": claim.epoch}
    if write.finished is not None:
        stop: Any = write.finished.payload.get("stop") or {}
        changes |= {
            "status": write.finished.payload["status"],
            # As long as the columns: a hook may call itself and its rules what it likes.
            **{f"stop_{name}": None if (said := stop.get(name)) is None else said[:128] for name in ("hook", "rule")},
            "stop_reason": stop.get("reason"),
            "finished_us": write.events[-1].at_us,
            "checkpoint": None,
        }
    elif write.checkpoint is not None:
        changes["checkpoint"] = write.checkpoint
        if write.waits:
            changes["status"] = "waiting"
    return changes


def step_writes(run_id: str, step: KeptStep, now_us: int) -> list[Write]:
    """Return the statements that append a step to its thread.

    To do them twice is the same as once: a write whose caller was cancelled may or may not have been done.
    """
    thread_id = step.thread.id
    rows = [
        {"thread_id": thread_id, "position": step.position + n, "run_id": run_id, "message": stored_text(one)}
        for n, one in enumerate(step.said)
    ]
    values = [
        {"thread_id": thread_id, "key": key, "value": value, "updated_us": now_us}
        for key, value in step.changed.items()
    ]
    writes: list[Write] = []
    if rows:
        again = (messages.c.thread_id == thread_id) & (messages.c.position >= step.position)
        writes += [(delete(messages).where(again), None), (insert(messages), rows)]
    if step.changed or step.removed:
        keys = [{"in_thread": thread_id, "named": key} for key in (*step.changed, *step.removed)]
        writes.append((_REMOVE_METADATA, keys))
    if values:
        writes.append((insert(thread_metadata), values))
    if writes:
        writes.append((_USED, {"of_thread": thread_id, "at_us": now_us}))
    return writes
