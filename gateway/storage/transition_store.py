"""The queries of sandboxes' history: what became of them, written in batches and read in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, insert, literal, or_, select, true

from gateway.storage.database import Database
from gateway.storage.tables import sandbox_transitions, threads
from gateway.storage.thread_marks import is_there

_ROWS = sandbox_transitions.c
REASON_CHARS = 512
# States in which a sandbox stays until somebody does something with it.
_STILL = ("idle_stopped", "failed", "removed")


@dataclass(frozen=True)
class NewTransition:
    """What became of a sandbox, as the engine's side tells it; `at_us` is UTC microseconds since 1970.

    `after` is the id of what was told of it before, by who only found it so: whoever tells more meanwhile knows better.
    """

    tenant: str
    thread: str
    sandbox: str
    state: str
    reason: str
    at_us: int
    after: int | None = None


@dataclass(frozen=True)
class StoredTransition:
    """A transition as it is listed; ids grow."""

    id: int
    thread: str
    engine: str
    sandbox: str
    state: str
    reason: str
    at_us: int


@dataclass(frozen=True)
class Unfinished:
    """The last that is known of a sandbox that came to no end."""

    id: int
    tenant: str
    thread: str
    sandbox: str
    state: str


class TransitionStore:
    """Typed access to the history of sandboxes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, engine: str, told: Sequence[NewTransition]) -> None:
        """Write transitions, in their order. Those of a thread that is gone, or is being deleted, are written nowhere.

        One without a thread's name is of the thread that its sandbox was told of before. That a sandbox is removed,
        stopped or dead is written once: who finds it so tells it as well as who did it.
        The thread's row is held meanwhile: a deletion that begins waits, and finds what was written.
        """

        def work(connection: Connection) -> None:
            for one in told:
                found = select(
                    literal(one.tenant),
                    threads.c.id,
                    literal(engine),
                    literal(one.sandbox),
                    literal(one.state),
                    literal(one.reason[:REASON_CHARS]),
                    literal(one.at_us),
                ).where(threads.c.tenant == one.tenant, is_there(), _thread_of(one), _is_new(one))
                columns = ["tenant", "thread_id", "engine", "sandbox", "state", "reason", "at_us"]
                connection.execute(insert(sandbox_transitions).from_select(columns, found.with_for_update(read=True)))

        if told:
            await self._database.transact(work)

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        """Return a tenant's transitions, the newest first; of one thread, when it is given."""
        query = _told(tenant, thread)
        if before is not None:
            query = query.where(_ROWS.id < before)
        return await self._read(query.order_by(_ROWS.id.desc()).limit(limit))

    async def after(self, tenant: str, *, thread: str | None, after: int, limit: int) -> Sequence[StoredTransition]:
        """Return a tenant's transitions after an id, the oldest first; of one thread, when it is given.

        None is written with a lesser id any more: writers come one after the other (connecting.begin_writing()).
        """
        return await self._read(_told(tenant, thread).where(_ROWS.id > after).order_by(_ROWS.id).limit(limit))

    async def unfinished(self, engine: str, *, since: int) -> Sequence[Unfinished]:
        """Return the last that was told of each sandbox of an engine, where that is no end; those from an id on.

        One that failed is at its end if it never ran: what had run is there until it is removed.
        """
        later, earlier = sandbox_transitions.alias(), sandbox_transitions.alias()
        none_later = ~exists().where(later.c.sandbox == _ROWS.sandbox, later.c.id > _ROWS.id)
        ran = exists().where(earlier.c.sandbox == _ROWS.sandbox, earlier.c.state == "running")
        no_end = and_(_ROWS.state != "removed", or_(_ROWS.state != "failed", ran))
        query = (
            select(_ROWS.id, _ROWS.tenant, threads.c.name, _ROWS.sandbox, _ROWS.state)
            .join(threads, threads.c.id == _ROWS.thread_id)
            .where(_ROWS.id >= since, _ROWS.engine == engine, no_end, none_later)
            .order_by(_ROWS.id)
        )
        found = await self._database.rows(query)
        return [Unfinished(row.id, row.tenant, row.name, row.sandbox, row.state) for row in found]

    async def _read(self, query: Select[Any]) -> Sequence[StoredTransition]:
        return [
            StoredTransition(row.id, row.name, row.engine, row.sandbox, row.state, row.reason, row.at_us)
            for row in await self._database.rows(query)
        ]


def _told(tenant: str, thread: str | None) -> Select[Any]:
    query = (
        select(_ROWS.id, threads.c.name, _ROWS.engine, _ROWS.sandbox, _ROWS.state, _ROWS.reason, _ROWS.at_us)
        .join(threads, threads.c.id == _ROWS.thread_id)
        .where(_ROWS.tenant == tenant)
    )
    return query if thread is None else query.where(threads.c.name == thread)


def _thread_of(one: NewTransition) -> ColumnElement[bool]:
    """Return the condition of a transition's thread: by its name, or where nobody knew it by what was told before."""
    if one.thread:
        return threads.c.name == one.thread
    last = select(_ROWS.thread_id).where(_ROWS.tenant == one.tenant, _ROWS.sandbox == one.sandbox)
    return threads.c.id == last.order_by(_ROWS.id.desc()).limit(1).scalar_subquery()


def _is_new(one: NewTransition) -> ColumnElement[bool]:
    """Return the condition that a transition says something new, and is after what it is to be after."""
    of_it = and_(_ROWS.tenant == one.tenant, _ROWS.sandbox == one.sandbox)
    if one.after is not None:
        return select(func.max(_ROWS.id)).where(of_it).scalar_subquery() == one.after
    if one.state not in _STILL:
        return true()
    newest = select(_ROWS.state).where(of_it).order_by(_ROWS.id.desc()).limit(1).scalar_subquery()
    return func.coalesce(newest, "") != one.state
