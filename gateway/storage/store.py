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
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from agent.events import Event
from agent.messages import Message
from gateway.clock import MakeId, NowUs, make_id, now_us
from gateway.storage.database import Database, Write
from gateway.storage.stored_message import read_message, stored_text, whole_thread
from gateway.storage.tables import approvals, events, messages, runs, thread_metadata, threads, tool_calls

INTERRUPTED_REASON = "the gateway stopped while this was under way; what it had done by then is not known"

# A page of events ends after this many characters, whatever the number of events.
_EVENTS_PAGE_CHARS = 4 * 1024 * 1024
# A thread is read in slices of this size, so that a reader's thread is soon free for others.
_SLICE_CHARS = 1024 * 1024
T = TypeVar("T")
log = structlog.get_logger(__name__)

_OUTCOME_COLUMNS = (
    *("state", "verdict", "rule", "reason", "outcome", "exit_code", "is_error", "result_bytes"),
    *("policy_version", "would_be", "would_be_rule", "approval_id"),
)
# On the path of every call, so it is built once: building it costs as much as running it.
_FINISH_TOOL_CALL = (
    update(tool_calls)
    .where(tool_calls.c.id == bindparam("finished_id"))
    .values({name: bindparam(name) for name in (*_OUTCOME_COLUMNS, "finished_us")})
)

_REMOVE_METADATA = delete(thread_metadata).where(
    thread_metadata.c.thread_id == bindparam("in_thread"), thread_metadata.c.key == bindparam("named")
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
        rows = [
            {"thread_id": thread.id, "position": position + n, "run_id": run_id, "message": stored_text(one)}
            for n, one in enumerate(said)
        ]
        values = [
            {"thread_id": thread.id, "key": key, "value": value, "updated_us": self._clock()}
            for key, value in changed.items()
        ]
        writes: list[Write] = []
        if rows:
            again = (messages.c.thread_id == thread.id) & (messages.c.position >= position)
            writes += [(delete(messages).where(again), None), (insert(messages), rows)]
        if changed or removed:
            keys = [{"in_thread": thread.id, "named": key} for key in (*changed, *removed)]
            writes.append((_REMOVE_METADATA, keys))
        if values:
            writes.append((insert(thread_metadata), values))
        if writes:
            await self._database.write(*writes)

    # --- runs and their events ---

    async def add_run(
        self, thread: Thread, *, agent: str, task: str, policy_version: str, policy_mode: str = "pin", run_id: str = ""
    ) -> Run:
        """Store a run that starts now; it is given an id unless it has one."""
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
        }
        await self._database.write((insert(runs), row))
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

    async def add_events(
        self,
        run_id: str,
        batch: Sequence[LoggedEvent],
        finished: Event | None = None,
        suspended: str | None = None,
    ) -> None:
        """Append events, and in the same transaction end the run with its last one, or keep the state it waits in."""
        rows = [
            {"run_id": run_id, "sequence": e.sequence, "type": e.type, "at_us": e.at_us, "payload": e.payload}
            for e in batch
        ]
        changes: dict[str, Any] = {"last_sequence": batch[-1].sequence}
        if finished is not None:
            stop: Any = finished.payload.get("stop") or {}
            changes |= {
                "status": finished.payload["status"],
                "stop_hook": stop.get("hook"),
                "stop_rule": stop.get("rule"),
                "stop_reason": stop.get("reason"),
                "finished_us": batch[-1].at_us,
                "checkpoint": None,
            }
        elif suspended is not None:
            changes |= {"status": "waiting", "checkpoint": suspended}
        await self._database.write(
            (insert(events), rows), (update(runs).where(runs.c.id == run_id).values(**changes), None)
        )

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

    async def end_interrupted(self) -> int:
        """End the runs and tool calls that an earlier process left under way; return how many runs there were.

        Only those of this gateway, where it has a name, and those of none: others may be at work on theirs. A run that
        waits for an approval is nobody's, and stays.
        """
        query = select(runs.c.id, runs.c.last_sequence).where(runs.c.status == "running", self._mine(runs.c.gateway))
        left = await self._database.rows(query)
        for run_id, last_sequence in (tuple(row) for row in left):
            stop: dict[str, JsonValue] = {"hook": "gateway", "rule": "interrupted", "reason": INTERRUPTED_REASON}
            event = Event("run_finished", {"status": "failed", "stop": stop, "answer": ""})
            logged = LoggedEvent(last_sequence + 1, event.type, self._clock(), json.dumps(event.payload))
            await self.add_events(run_id, [logged], event)
            asked = (approvals.c.run_id == run_id) & approvals.c.status.in_(("pending", "approved"))
            changes = {"status": "cancelled", "changed_us": self._clock()}
            await self._database.write((update(approvals).where(asked).values(**changes), None))
        done = {"state": "interrupted", "reason": INTERRUPTED_REASON, "finished_us": self._clock()}
        executing = (tool_calls.c.state == "executing") & self._mine(tool_calls.c.gateway)
        await self._database.write((update(tool_calls).where(executing).values(**done), None))
        return len(left)

    def _mine(self, column: Column[Any]) -> ColumnElement[bool]:
        return or_(column.is_(None), column == self._gateway) if self._gateway is not None else true()

    # --- tool calls ---

    async def write_tool_call(self, row: dict[str, Any]) -> None:
        """Journal a tool call: that it is about to execute, or that it was blocked."""
        write: Write = (insert(tool_calls), {"started_us": self._clock(), "gateway": self._gateway, **row})
        await self._database.write(write)

    async def finish_tool_call(self, call_id: str, changes: dict[str, Any]) -> None:
        """Journal a tool call's outcome."""
        unknown = changes.keys() - set(_OUTCOME_COLUMNS)
        if unknown:
            raise ValueError(f"not columns of an outcome: {sorted(unknown)}")
        row = dict.fromkeys(_OUTCOME_COLUMNS) | changes | {"finished_us": self._clock(), "finished_id": call_id}
        await self._database.write((_FINISH_TOOL_CALL, row))

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
