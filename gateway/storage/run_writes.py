"""What is written of a run under way, in one transaction and only by the gateway that hosts it, and the audit of runs.

A run is hosted under an epoch, which increases whenever a gateway takes the run. Each write is conditional on the
writer's epoch: a gateway that was thought lost and is back can no longer write. Writers take turns
(gateway/storage/database.py), so no takeover comes between the check and the write.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from agent.events import Event
from agent.messages import Message
from gateway.credentials.caller import actor
from gateway.storage.audit_store import AuditEntry, shared
from gateway.storage.database import Write
from gateway.storage.entities import LoggedEvent, Run, Thread, stored_text
from gateway.storage.insertion import insert_new
from gateway.storage.prepared import Prepared
from gateway.storage.queries import with_thread
from gateway.storage.tables import events, holds, messages, runs, thread_metadata, threads, tool_calls
from gateway.storage.usage_store import RunUse, read_usage, total_of, write_usage

# Every write of a run executes these.
_CHANGE_RUN = Prepared(
    update(runs).where(
        runs.c.id == bindparam("of_run"), runs.c.epoch == bindparam("of_epoch"), runs.c.status == "running"
    )
)
# Every call executes it, so it is built once.
_IS_OURS = select(runs.c.id).where(
    runs.c.id == bindparam("of_run"), runs.c.epoch == bindparam("of_epoch"), runs.c.status == "running"
)


class LeaseLost(Exception):
    """Another gateway has the run: nothing was written, and the run must end here without writing anything."""


@dataclass(frozen=True)
class Claim:
    """A run that this process hosts, under this epoch."""

    run_id: str
    epoch: int = 0


@dataclass(frozen=True)
class KeptStep:
    """What a step adds to its thread: messages from `position` on, and metadata as JSON texts by key."""

    thread: Thread
    position: int
    said: Sequence[Message] = ()
    changed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    removed: Collection[str] = ()


@dataclass(frozen=True)
class RunWrite:
    """What is written of a run in one transaction.

    `finished` is the last of `events` if it ends the run. `checkpoint` is the state that the run continues from, as
    JSON; with `waits` the run is unhosted until an approval is answered. `forget` are calls whose results are no longer
    needed. `steps` is how many the run has begun, None if that is as before; `used` the tenant and the totals that
    the run is charged.
    """

    events: Sequence[LoggedEvent] = ()
    finished: Event | None = None
    checkpoint: str | None = None
    waits: bool = False
    step: KeptStep | None = None
    forget: Collection[str] = ()
    steps: int | None = None
    used: tuple[str, Sequence[RunUse]] | None = None


@cache
def _add_events(dialect: str) -> Prepared:
    return Prepared(insert_new(events, dialect))


def check_claim(connection: Connection, claim: Claim) -> None:
    """Raise LeaseLost unless this process still hosts the run; that holds until the transaction ends."""
    if connection.execute(_IS_OURS, {"of_run": claim.run_id, "of_epoch": claim.epoch}).first() is None:
        raise LeaseLost(claim.run_id)


def write_run(connection: Connection, claim: Claim, write: RunWrite, now_us: Callable[[], int]) -> bool:
    """Write it, or raise LeaseLost; False if its end or wait was written before, in a commit without a known result."""
    changes = _changes(claim, write)
    whose = {"of_run": claim.run_id, "of_epoch": claim.epoch}
    if not _CHANGE_RUN.execute(connection, {**changes, **whose}).rowcount:
        ours = (runs.c.id == claim.run_id) & (runs.c.epoch == claim.epoch)
        as_left = [runs.c[name] == changes[name] for name in ("status", "last_sequence") if name in changes]
        if "status" in changes and connection.execute(select(runs.c.id).where(ours, *as_left)).first() is not None:
            return False
        raise LeaseLost(claim.run_id)
    if write.events:
        rows = [{"run_id": claim.run_id, **vars(event)} for event in write.events]
        _add_events(connection.dialect.name).execute_all(connection, rows)
    if write.step is not None:
        for statement, parameters in step_writes(claim.run_id, write.step, now_us()):
            connection.execute(statement, parameters)
    if write.used is not None:
        write_usage(connection, claim.run_id, *write.used, now_us())
    if write.forget:
        kept = (tool_calls.c.run_id == claim.run_id) & tool_calls.c.id.in_(list(write.forget))
        connection.execute(update(tool_calls).where(kept).values(result=None))
    if write.finished is not None:
        # With the end and not after it: a watcher that sees the end may start the next run, which needs the place.
        connection.execute(delete(holds).where(holds.c.id == claim.run_id))
    return True


def _changes(claim: Claim, write: RunWrite) -> dict[str, Any]:
    changes: dict[str, Any] = {"last_sequence": write.events[-1].sequence} if write.events else {"epoch": claim.epoch}
    if write.steps is not None:
        changes["steps"] = write.steps
    if write.finished is not None:
        changes |= finish_changes(write.finished, write.events[-1].at_us)
    elif write.checkpoint is not None:
        changes["checkpoint"] = write.checkpoint
        if write.waits:
            changes["status"] = "waiting"
    return changes


def finish_changes(finished: Event, at_us: int) -> dict[str, Any]:
    """Return the columns of a run that ends with this event."""
    stop: Any = finished.payload.get("stop") or {}
    return {
        "status": finished.payload["status"],
        # As long as the columns: hooks choose the names of themselves and their rules.
        **{f"stop_{name}": None if (said := stop.get(name)) is None else said[:128] for name in ("hook", "rule")},
        "stop_reason": stop.get("reason"),
        "finished_us": at_us,
        "checkpoint": None,
    }


def step_writes(run_id: str, step: KeptStep, now_us: int) -> list[Write]:
    """Return the statements that append a step to its thread; idempotent."""
    thread_id = step.thread.id
    rows = [
        {"thread_id": thread_id, "position": step.position + n, "run_id": run_id, "message": stored_text(one)}
        for n, one in enumerate(step.said)
    ]
    values = metadata_rows(thread_id, step.changed, now_us)
    writes: list[Write] = []
    if rows:
        again = (messages.c.thread_id == thread_id) & (messages.c.position >= step.position)
        writes += [(delete(messages).where(again), None), (insert(messages), rows)]
    if step.changed or step.removed:
        entries, keys = thread_metadata.c, [*step.changed, *step.removed]
        old = delete(thread_metadata).where(entries.thread_id == thread_id, entries.key.in_(keys))
        writes.append((old, None))
    if values:
        writes.append((insert(thread_metadata), values))
    if writes:
        # Retention goes by the time of the last addition to a thread.
        writes.append((update(threads).where(threads.c.id == thread_id).values(used_us=now_us), None))
    return writes


def metadata_rows(thread_id: str, values: Mapping[str, str], now_us: int) -> list[dict[str, Any]]:
    """Return metadata (JSON texts by key) as rows of a thread."""
    return [{"thread_id": thread_id, "key": key, "value": text, "updated_us": now_us} for key, text in values.items()]


def run_started(run: Run) -> AuditEntry:
    """Return the entry of a run that starts; the actor is the current caller."""
    return AuditEntry(
        run.tenant,
        "run_started",
        actor(),
        **shared(run, "thread", "policy_version"),
        run_id=run.id,
        details={"agent": run.agent, "policy_mode": run.policy_mode},
    )


def _used(uses: Sequence[RunUse]) -> dict[str, JsonValue]:
    total = total_of(uses)
    return {
        "models": sorted({use.model for use in uses}),
        "requests": total.requests,
        **total.usage.with_(cost_usd=round(total.usage.cost_usd, 9)).model_dump(),
    }


def run_changed(
    connection: Connection, kind: str, run_id: str, *, by: str = "gateway", details: dict[str, str] | None = None
) -> tuple[AuditEntry, ...]:
    """Return the entry of a run as it is in this transaction; empty if the run no longer exists."""
    columns = ("tenant", "policy_version", "status", "stop_hook", "stop_rule", "started_us", "finished_us", "steps")
    query = with_thread(runs, *(runs.c[name] for name in columns)).where(runs.c.id == run_id)
    found = connection.execute(query).first()
    if found is None:
        return ()
    over = found.finished_us is not None
    known: dict[str, JsonValue] = {}
    if over:
        known = {"stop_hook": found.stop_hook, "stop_rule": found.stop_rule, "steps": found.steps}
        known |= _used(read_usage(connection, run_id))
    return (
        AuditEntry(
            found.tenant,
            kind,
            by,
            **shared(found, "thread", "policy_version"),
            run_id=run_id,
            outcome=found.status,
            duration_us=max(0, found.finished_us - found.started_us) if over else 0,
            details={**known, **(details or {})},
        ),
    )
