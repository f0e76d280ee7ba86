"""The queries of sandboxes' history: what became of them, written in batches and read in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, literal, select

from gateway.storage.database import Database
from gateway.storage.tables import sandbox_transitions, threads

_ROWS = sandbox_transitions.c
REASON_CHARS = 512


@dataclass(frozen=True)
class NewTransition:
    """What became of a sandbox, as the engine's side tells it; `at_us` is UTC microseconds since 1970."""

    tenant: str
    thread: str
    sandbox: str
    state: str
    reason: str
    at_us: int


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


class TransitionStore:
    """Typed access to the history of sandboxes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, engine: str, told: Sequence[NewTransition]) -> None:
        """Write transitions, in their order. Those of a thread that is gone, or is being deleted, are written nowhere.

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
                ).where(threads.c.tenant == one.tenant, threads.c.name == one.thread, threads.c.deletion.is_(None))
                columns = ["tenant", "thread_id", "engine", "sandbox", "state", "reason", "at_us"]
                connection.execute(insert(sandbox_transitions).from_select(columns, found.with_for_update(read=True)))

        if told:
            await self._database.transact(work)

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        """Return a tenant's transitions, the newest first; of one thread, when it is given."""
        query = (
            select(_ROWS.id, threads.c.name, _ROWS.engine, _ROWS.sandbox, _ROWS.state, _ROWS.reason, _ROWS.at_us)
            .join(threads, threads.c.id == _ROWS.thread_id)
            .where(_ROWS.tenant == tenant)
        )
        if thread is not None:
            query = query.where(threads.c.name == thread)
        if before is not None:
            query = query.where(_ROWS.id < before)
        found = await self._database.rows(query.order_by(_ROWS.id.desc()).limit(limit))
        return [
            StoredTransition(row.id, row.name, row.engine, row.sandbox, row.state, row.reason, row.at_us)
            for row in found
        ]
