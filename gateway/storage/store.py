"""What calls and runs write: one thread, one run with its events, and the journal of calls (call_journal.py).

Each query takes the tenant, or a run that the caller has checked; lists are in thread_store.py.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
from pydantic import JsonValue
from sqlalchemy import Column, Connection, Row, Select, String, bindparam, func, insert, select, update

from agent.frozen import freeze
from agent.messages import Message
from gateway.credentials.caller import actor, caller_shown
from gateway.storage.audit_store import shared
from gateway.storage.call_journal import CallJournal, interrupt_calls
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import LoggedEvent, Run, Thread, read_message, whole_thread
from gateway.storage.prepared import Prepared
from gateway.storage.queries import mapped, slice_of, transaction, with_thread
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.run_writes import Claim, RunWrite, run_changed, run_started, write_run
from gateway.storage.tables import RUNS_UNDER_WAY, events, messages, runs, thread_metadata, threads, tool_calls
from gateway.storage.thread_store import no_thread
from gateway.support.clock import make_id

_SLICE_CHARS = 1024 * 1024
T = TypeVar("T")
log = structlog.get_logger(__name__)
# A page of events ends after this many characters, whatever the number of events.
_EVENTS_PAGE_CHARS = 256 * 1024
ONCE = ("run_started", "step_started", "step_finished", "tool_call_started", "hook_verdict", "tool_call_finished")
"""Events that a run, a step or a call has once."""

_ASKED_TO_CANCEL = Prepared(
    select(runs.c.id).where(
        runs.c.status == "running", runs.c.gateway == bindparam("own", type_=String), runs.c.cancel_us.is_not(None)
    )
)
_THREAD = Prepared(
    select(threads.c.id, threads.c.deletion).where(
        threads.c.tenant == bindparam("of_tenant"), threads.c.name == bindparam("named")
    )
)
# Not its checkpoint, which may be longer still than its task.
_RUN = Prepared(
    with_thread(runs, *(runs.c[name] for name in Run.__dataclass_fields__ if name != "thread")).where(
        runs.c.id == bindparam("of_run"), runs.c.tenant == bindparam("of_tenant")
    )
)
_EVENTS = select(events.c.sequence, events.c.type, events.c.at_us, events.c.payload).order_by(events.c.sequence)


@dataclass(frozen=True)
class NewRun:
    """A run to store; `checkpoint` is the state it starts from. Without `hosted` any gateway may take it."""

    agent: str
    task: str
    policy_version: str
    policy_mode: str = "pin"
    id: str = ""
    request: tuple[str, str] | None = None
    checkpoint: str | None = None
    hosted: bool = True


class Store(CallJournal):
    """Typed access to threads, runs and calls."""

    async def is_open(self, tenant: str, thread: str) -> bool:
        """Return whether a thread is there, and is not being deleted, restored or forked."""
        found = await self._database.look(_THREAD, {"of_tenant": tenant, "named": thread})
        return bool(found) and found[0].deletion is None

    async def thread(self, tenant: str, name: str, *, limit: int | None = None, make: bool = True) -> Thread:
        """Return a thread of a tenant, created if missing.

        Raises QuotaExceeded if that would exceed `limit`, NotFound without `make`.
        """
        found = await self._database.look(_THREAD, {"of_tenant": tenant, "named": name})
        if found:
            return Thread(id=found[0].id, tenant=tenant, name=name)
        if not make:
            raise no_thread(name)
        made = Thread(id=make_id("thr"), tenant=tenant, name=name)
        row = {**vars(made), "created_us": self.clock()}

        def work(connection: Connection) -> None:
            if limit is not None:
                refuse_more_threads(connection, tenant, limit)
            connection.execute(insert(threads), row)

        try:
            await self._database.transact(work)
        except ConstraintViolated:  # another call created it first
            return await self.thread(tenant, name, limit=limit)
        return made

    async def before_run(self, thread: Thread) -> tuple[int, str | None]:
        """Return the length of a thread's messages in characters, and the run in it that waits for an approval."""
        chars = select(func.sum(func.length(messages.c.message))).where(messages.c.thread_id == thread.id)
        waiting = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status == "waiting")
        query = select(chars.scalar_subquery().label("chars"), waiting.scalar_subquery().label("waiting"))
        (row,) = await self._database.rows(query)
        return row.chars or 0, row.waiting

    async def messages_of(self, thread: Thread) -> tuple[Message, ...]:
        """Return a thread's messages, oldest first. One that cannot be read is replaced by a note."""
        query = select(messages.c.position, messages.c.message).where(messages.c.thread_id == thread.id)
        found = await self._slices(query, messages.c.position, lambda row: read_message(row.message))
        bad = [position for position, one in enumerate(found) if not one.well]
        if not bad:
            return tuple(one.message for one in found if one.message is not None)
        whose = {"tenant": thread.tenant, "thread": thread.name}
        log.warning("messages of a thread cannot be read", **whose, messages=len(bad), first_position=bad[0])
        return whole_thread(one.message for one in found)

    async def metadata_of(self, thread: Thread) -> dict[str, JsonValue]:
        columns = thread_metadata.c
        query = select(columns.key, columns.value).where(columns.thread_id == thread.id)

        def parsed(row: Row[Any]) -> dict[str, JsonValue]:
            try:
                return {row.key: freeze(json.loads(row.value))}
            except (ValueError, RecursionError):  # one damaged value must not cost the thread
                log.warning("a stored value cannot be read", tenant=thread.tenant, thread=thread.name, key=row.key)
                return {}

        found = await self._slices(query, columns.key, parsed)
        return {key: value for one in found for key, value in one.items()}

    async def _slices(self, query: Select[Any], key: Column[Any], parse: Callable[[Row[Any]], T]) -> list[T]:
        """Return all rows, read and parsed slice by slice, off the event loop. `key` is the query's first column."""
        found: list[T] = []
        query = query.order_by(key)
        take = partial(slice_of, parse=parse, limit_chars=_SLICE_CHARS)
        parsed, last = await self._database.read(query, take)
        while last is not None:
            found += parsed
            parsed, last = await self._database.read(query.where(key > last), take)
        return found + parsed

    # --- runs and their events ---

    @transaction
    def add_run(self, connection: Connection, thread: Thread, new: NewRun) -> Run:
        """Store a run that starts now; ConstraintViolated if another run has its request id."""
        run = Run(
            id=new.id or make_id("run"),
            tenant=thread.tenant,
            thread=thread.name,
            status="running",
            started_us=self.clock(),
            started_by=caller_shown(),
            **shared(new, "agent", "task", "policy_version", "policy_mode"),
        )
        request_id, digest = new.request or (None, None)
        row = {name: value for name, value in vars(run).items() if name != "thread"} | {
            "thread_id": thread.id,
            "gateway": self.gateway if new.hosted else None,
            "checkpoint": new.checkpoint,
            "request_id": request_id,
            "request_digest": digest,
        }
        connection.execute(insert(runs), row)
        self.audit.append(connection, run_started(run))
        return run

    async def run(self, tenant: str, run_id: str) -> Run | None:
        found = await self._database.found(_RUN, {"of_run": run_id, "of_tenant": tenant})
        return mapped(Run, found[0]) if found else None

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        """Write a run's progress atomically; LeaseLost if another gateway has the run."""

        def work(connection: Connection) -> None:
            if write_run(connection, claim, write, self.clock) and write.finished is not None:
                # A finished run has no open calls: those that a lost gateway began are recorded as interrupted.
                left = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")
                interrupt_calls(connection, self.audit, left, self.clock())
                self.audit.append(connection, *run_changed(connection, "run_finished", claim.run_id))

        await self._database.transact(work, apart=False)

    async def events_of(self, run_id: str, from_sequence: int, limit: int) -> Sequence[LoggedEvent]:
        """Return a run's events from a sequence number on: at most `limit`, fewer (at least one) if they are large."""
        query = _EVENTS.where(events.c.run_id == run_id, events.c.sequence >= from_sequence).limit(limit)
        take = partial(slice_of, parse=partial(mapped, LoggedEvent), limit_chars=_EVENTS_PAGE_CHARS)
        page, _ = await self._database.read(query, take)
        return page

    async def logged_since(self, run_id: str, sequence: int) -> Sequence[LoggedEvent]:
        """Return the events past a sequence number that must not be logged a second time."""
        query = _EVENTS.where(events.c.run_id == run_id, events.c.sequence > sequence, events.c.type.in_(ONCE))
        return await self._all(LoggedEvent, query)

    @transaction
    def ask_to_cancel(self, connection: Connection, run_id: str) -> None:
        """Request the end of a run from the gateway that hosts it, now or later."""
        under_way = (runs.c.id == run_id) & runs.c.status.in_(RUNS_UNDER_WAY) & runs.c.cancel_us.is_(None)
        by = actor()
        if connection.execute(update(runs).where(under_way).values(cancel_us=self.clock())).rowcount:
            self.audit.append(connection, *run_changed(connection, "run_cancelled", run_id, by=by))

    async def asked_to_cancel(self) -> Sequence[str]:
        return [row.id for row in await self._database.look(_ASKED_TO_CANCEL, {"own": self.gateway})]

    async def hand_over(self, claim: Claim) -> None:
        """Release a run that this process hosts, for another gateway to take."""
        ours = (runs.c.id == claim.run_id) & (runs.c.epoch == claim.epoch) & (runs.c.status == "running")
        await self._database.write((update(runs).where(ours).values(gateway=None, epoch=claim.epoch + 1), None))

    async def under_way(self, thread: Thread) -> str | None:
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status.in_(RUNS_UNDER_WAY))
        run_id: str | None = await self._database.scalar(query)
        return run_id
