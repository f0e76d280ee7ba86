"""The queries: threads and what is kept of them, runs, events and tool calls. Each names the tenant it serves."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog
from pydantic import JsonValue
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from agent.messages import Message
from gateway.clock import MakeId, NowUs, make_id, now_us
from gateway.identity.principal import actor
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.lease_store import INTERRUPTED_REASON
from gateway.storage.prepared import Prepared
from gateway.storage.run_audit import calls_interrupted, run_changed, run_started
from gateway.storage.run_writes import Claim, KeptStep, RunWrite, check_claim, step_writes, write_run
from gateway.storage.stored_message import read_message, whole_thread
from gateway.storage.tables import events, messages, runs, thread_metadata, threads, tool_calls

# A page of events ends after this many characters, whatever the number of events.
_EVENTS_PAGE_CHARS = 256 * 1024
# A thread is read in slices of this size, so that a reader's thread is soon free for others.
_SLICE_CHARS = 1024 * 1024
T = TypeVar("T")
log = structlog.get_logger(__name__)

_OUTCOME_COLUMNS = (
    *("state", "verdict", "rule", "reason", "outcome", "exit_code", "is_error", "result_bytes"),
    *("policy_version", "would_be", "would_be_rule", "approval_id", "result"),
)
ONCE = ("run_started", "step_started", "step_finished", "tool_call_started", "hook_verdict", "tool_call_finished")
"""Events that are told once of a run, a step or a call."""

_BEGIN_TOOL_CALL = Prepared(insert(tool_calls))
_FINISH_TOOL_CALL = Prepared(
    update(tool_calls)
    .where(tool_calls.c.id == bindparam("finished_id"), tool_calls.c.state == "executing")
    .values({name: bindparam(name) for name in (*_OUTCOME_COLUMNS, "finished_us")})
)


@dataclass(frozen=True)
class Thread:
    """A thread: `id` is ours, `name` is the tenant's."""

    id: str
    tenant: str
    name: str


@dataclass(frozen=True)
class Run:
    """A run as it is stored; `thread` is the thread's name."""

    id: str
    tenant: str
    thread: str
    agent: str
    task: str
    policy_version: str
    status: str
    stop_hook: str | None
    stop_rule: str | None
    stop_reason: str | None
    last_sequence: int
    started_us: int
    finished_us: int | None
    policy_mode: str = "pin"


@dataclass(frozen=True)
class LoggedEvent:
    """An event with its place in the run's log."""

    sequence: int
    type: str
    at_us: int
    payload: str


class Store:
    """Typed access to the database."""

    def __init__(
        self, database: Database, *, gateway: str | None = None, clock: NowUs = now_us, ids: MakeId = make_id
    ) -> None:
        self._database = database
        self.audit = AuditStore(database, clock)
        self._gateway = gateway
        self._clock = clock
        self._ids = ids

    # --- threads ---

    async def thread(self, tenant: str, name: str) -> Thread:
        """Return a thread of a tenant, made when it is not there."""
        query = select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
        found = await self._database.rows(query)
        if found:
            return Thread(id=found[0].id, tenant=tenant, name=name)
        made = Thread(id=self._ids("thr"), tenant=tenant, name=name)
        row = {"id": made.id, "tenant": tenant, "name": name, "created_us": self._clock()}
        try:
            await self._database.write((insert(threads), row))
        except IntegrityError:  # another call made it first
            return await self.thread(tenant, name)
        return made

    async def thread_chars(self, thread: Thread) -> int:
        """Return how long what was said in a thread is, as it is stored."""
        query = select(func.sum(func.length(messages.c.message)).label("chars")).where(
            messages.c.thread_id == thread.id
        )
        return (await self._database.rows(query))[0].chars or 0

    async def messages_of(self, thread: Thread) -> tuple[Message, ...]:
        """Return what was said in a thread, oldest first. Of one that cannot be read it says so."""
        query = select(messages.c.position, messages.c.message).where(messages.c.thread_id == thread.id)
        found = await self._slices(query, messages.c.position, lambda row: read_message(row.message))
        bad = [position for position, one in enumerate(found) if not one.well]
        if not bad:
            return tuple(one.message for one in found if one.message is not None)
        whose = {"tenant": thread.tenant, "thread": thread.name}
        log.warning("messages of a thread cannot be read", **whose, messages=len(bad), first_position=bad[0])
        return whole_thread(one.message for one in found)

    async def metadata_of(self, thread: Thread) -> dict[str, JsonValue]:
        """Return what is known about a thread: the values by their keys."""
        columns = thread_metadata.c
        query = select(columns.key, columns.value).where(columns.thread_id == thread.id)

        def parsed(row: Row[Any]) -> dict[str, JsonValue]:
            try:
                return {row.key: json.loads(row.value)}
            except ValueError:  # one damaged value must not cost the thread
                log.warning("a stored value cannot be read", tenant=thread.tenant, thread=thread.name, key=row.key)
                return {}

        found = await self._slices(query, columns.key, parsed)
        return {key: value for one in found for key, value in one.items()}

    async def _slices(self, query: Select[Any], key: Column[Any], parse: Callable[[Row[Any]], T]) -> list[T]:
        """Return all rows, read and parsed slice by slice, not on the event loop. `key` is the query's first column."""
        found: list[T] = []
        query = query.order_by(key)
        take = partial(_slice, parse=parse, limit_chars=_SLICE_CHARS)
        parsed, last = await self._database.read(query, take)
        while last is not None:
            found += parsed
            parsed, last = await self._database.read(query.where(key > last), take)
        return found + parsed

    async def keep_step(
        self,
        thread: Thread,
        run_id: str,
        position: int,
        said: Sequence[Message],
        *,
        changed: Mapping[str, str] = MappingProxyType({}),
        removed: Collection[str] = (),
    ) -> None:
        """Append messages from `position` on, and change the thread's metadata (JSON texts by their keys), or neither.

        To be told twice is the same as once: a write whose caller was cancelled may or may not have been done.
        """
        writes = step_writes(run_id, KeptStep(thread, position, said, changed, removed), self._clock())
        if writes:
            await self._database.write(*writes)

    # --- runs and their events ---

    async def add_run(
        self,
        thread: Thread,
        *,
        agent: str,
        task: str,
        policy_version: str,
        policy_mode: str = "pin",
        run_id: str = "",
        request: tuple[str, str] | None = None,
        checkpoint: str | None = None,
    ) -> Run:
        """Store a run that starts now; it is given an id unless it has one. `checkpoint` is the state it starts from.

        `request` is its request id, with the digest of the request; IntegrityError where another run has the id.
        """
        run = Run(
            id=run_id or self._ids("run"),
            tenant=thread.tenant,
            thread=thread.name,
            agent=agent,
            task=task,
            policy_version=policy_version,
            status="running",
            stop_hook=None,
            stop_rule=None,
            stop_reason=None,
            last_sequence=0,
            started_us=self._clock(),
            finished_us=None,
            policy_mode=policy_mode,
        )
        row = {
            "id": run.id,
            "tenant": run.tenant,
            "thread_id": thread.id,
            "agent": agent,
            "task": task,
            "policy_version": policy_version,
            "status": run.status,
            "last_sequence": 0,
            "started_us": run.started_us,
            "policy_mode": policy_mode,
            "gateway": self._gateway,
            "checkpoint": checkpoint,
            "request_id": request[0] if request else None,
            "request_digest": request[1] if request else None,
        }
        begun = run_started(
            run.id,
            tenant=run.tenant,
            thread=run.thread,
            agent=agent,
            policy_version=policy_version,
            policy_mode=policy_mode,
        )

        def work(connection: Connection) -> None:
            connection.execute(insert(runs), row)
            self.audit.append(connection, entries=[begun])

        await self._database.transact(work)
        return run

    async def run(self, tenant: str, run_id: str) -> Run | None:
        """Return a run of a tenant."""
        query = (
            select(runs, threads.c.name.label("thread"))
            .join(threads, runs.c.thread_id == threads.c.id)
            .where(runs.c.id == run_id, runs.c.tenant == tenant)
        )
        found = await self._database.rows(query)
        return Run(**{name: getattr(found[0], name) for name in Run.__dataclass_fields__}) if found else None

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        """Write what a run has come to, all of it or none; LeaseLost when another gateway has the run."""

        def work(connection: Connection) -> None:
            if write_run(connection, claim, write, self._clock) and write.finished is not None:
                # A run that is over has nothing under way: what a gateway that is lost had begun is told as that.
                left = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")
                self._interrupt(connection, left)
                self.audit.append(connection, entries=run_changed(connection, "run_finished", claim.run_id))

        await self._database.transact(work, apart=False)

    async def events_of(self, run_id: str, from_sequence: int, limit: int) -> Sequence[LoggedEvent]:
        """Return a run's events from a sequence number on: `limit` of them, or fewer, but one, when they are large.

        The caller has checked whose run it is.
        """
        query = (
            select(events.c.sequence, events.c.type, events.c.at_us, events.c.payload)
            .where(events.c.run_id == run_id, events.c.sequence >= from_sequence)
            .order_by(events.c.sequence)
            .limit(limit)
        )
        take = partial(_slice, parse=_logged_event, limit_chars=_EVENTS_PAGE_CHARS)
        page, _ = await self._database.read(query, take)
        return page

    async def told_since(self, run_id: str, sequence: int) -> Sequence[LoggedEvent]:
        """Return the events of steps and calls past a sequence number: what must not be told a second time."""
        query = (
            select(events.c.sequence, events.c.type, events.c.at_us, events.c.payload)
            .where(events.c.run_id == run_id, events.c.sequence > sequence, events.c.type.in_(ONCE))
            .order_by(events.c.sequence)
        )
        return [_logged_event(row) for row in await self._database.rows(query)]

    async def ask_to_cancel(self, run_id: str) -> None:
        """Ask whoever hosts a run, or takes it, to end it."""
        under_way = (runs.c.id == run_id) & runs.c.status.in_(("running", "waiting")) & runs.c.cancel_us.is_(None)
        by = actor()

        def work(connection: Connection) -> None:
            if connection.execute(update(runs).where(under_way).values(cancel_us=self._clock())).rowcount:
                self.audit.append(connection, entries=run_changed(connection, "run_cancelled", run_id, by=by))

        await self._database.transact(work)

    async def asked_to_cancel(self) -> Sequence[str]:
        """Return the runs of this gateway whose end somebody asked for."""
        mine = (runs.c.status == "running") & (runs.c.gateway == self._gateway) & runs.c.cancel_us.is_not(None)
        return [row.id for row in await self._database.rows(select(runs.c.id).where(mine))]

    async def hand_over(self, claim: Claim) -> None:
        """Let go of a run that this process hosts, for whoever takes it."""
        ours = (runs.c.id == claim.run_id) & (runs.c.epoch == claim.epoch) & (runs.c.status == "running")
        await self._database.write((update(runs).where(ours).values(gateway=None, epoch=claim.epoch + 1), None))

    async def under_way(self, thread: Thread) -> str | None:
        """Return the run that is under way in a thread, on whichever gateway."""
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status.in_(("running", "waiting")))
        found = await self._database.rows(query)
        return found[0].id if found else None

    # --- tool calls ---

    async def calls_under_way(self, run_id: str) -> bool:
        """Return whether any call of a run is under way, as far as is written."""
        under_way = (tool_calls.c.run_id == run_id) & (tool_calls.c.state == "executing")
        return bool(await self._database.rows(select(tool_calls.c.id).where(under_way).limit(1)))

    async def write_tool_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a tool call: that it is about to execute, or that it was blocked.

        With the `claim` of the run that it belongs to it raises LeaseLost when another gateway has that run. A call
        that was interrupted and is made again under its id takes the place of what was written of it.
        """
        begun = {"started_us": self._clock(), "gateway": self._gateway, **row}

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
                if row.get("read_only"):
                    again = (tool_calls.c.id == row["id"]) & tool_calls.c.read_only
                    connection.execute(delete(tool_calls).where(again))
            _BEGIN_TOOL_CALL.execute(connection, begun)
            self.audit.append(connection, entries=audited)

        await self._database.transact(work, apart=False)

    async def finish_tool_call(
        self,
        call_id: str,
        changes: dict[str, Any],
        *,
        claim: Claim | None = None,
        audited: Sequence[AuditEntry] = (),
    ) -> None:
        """Journal a tool call's outcome, and tell the audit, unless the call has an outcome already."""
        unknown = changes.keys() - set(_OUTCOME_COLUMNS)
        if unknown:
            raise ValueError(f"not columns of an outcome: {sorted(unknown)}")
        row = dict.fromkeys(_OUTCOME_COLUMNS) | changes | {"finished_us": self._clock(), "finished_id": call_id}

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if _FINISH_TOOL_CALL.execute(connection, row).rowcount:
                self.audit.append(connection, entries=audited)

        await self._database.transact(work, apart=False)

    async def take_over_calls(self, claim: Claim, call_ids: Collection[str]) -> Mapping[str, dict[str, Any]]:
        """Return what the journal has of calls of a run that was taken, by their ids, as it was before.

        All calls of the run that were under way are journaled as interrupted, but for those of `call_ids` that only
        read: they may be made again.
        """
        asked = tool_calls.c.id.in_(list(call_ids)) & (tool_calls.c.run_id == claim.run_id)
        again = asked & tool_calls.c.read_only
        under_way = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")

        def work(connection: Connection) -> dict[str, dict[str, Any]]:
            check_claim(connection, claim)
            found = connection.execute(select(tool_calls).where(asked)).all()
            self._interrupt(connection, under_way & ~again)
            return {row.id: dict(row._mapping) for row in found}  # noqa: SLF001 - its public name

        return await self._database.transact(work)

    def _interrupt(self, connection: Connection, which: ColumnElement[bool]) -> None:
        """Journal calls as interrupted, and tell the audit."""
        done = {"state": "interrupted", "outcome": "interrupted", "reason": INTERRUPTED_REASON, "is_error": True}
        self.audit.append(connection, entries=calls_interrupted(connection, which))
        connection.execute(update(tool_calls).where(which).values(**done, finished_us=self._clock()))

    async def tool_call(self, tenant: str, call_id: str) -> dict[str, Any] | None:
        """Return a journaled tool call of a tenant."""
        query = select(tool_calls).where(tool_calls.c.id == call_id, tool_calls.c.tenant == tenant)
        found = await self._database.rows(query)
        return dict(zip(tool_calls.c.keys(), found[0], strict=True)) if found else None


def _logged_event(row: Row[Any]) -> LoggedEvent:
    return LoggedEvent(row.sequence, row.type, row.at_us, row.payload)


def _slice(rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], T], limit_chars: int) -> tuple[list[T], Any]:
    """Return the first rows, parsed: as many as are no longer than that together, and one at least.

    Besides the key of the last one, when there are more. The key is a row's first column, its last one may be long.
    """
    parsed: list[T] = []
    chars, last = 0, None
    for row in rows:
        chars += len(row[-1])
        if parsed and chars > limit_chars:
            return parsed, last
        parsed.append(parse(row))
        last = row[0]
    return parsed, None
