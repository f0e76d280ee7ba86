"""The queries of snapshots: what a tenant has kept of its threads' files. See also restore_store.py, fork_store.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, tuple_

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.restore_store import ThreadGoing
from gateway.storage.tables import messages, snapshots, threads
from gateway.storage.thread_marks import RESTORING
from gateway.support.clock import NowUs, now_us
from gateway.support.paging import Place

ASKED, STEP, RUN, FORK = "asked", "step", "run", "fork"
"""Why there is a snapshot: somebody asked for it, a step or a run ended, a thread was forked. All but the first are
automatic: they make room for others, and go with their thread."""


@dataclass(frozen=True)
class Snapshot:
    """A row. `thread` is the name of the thread it was taken of, `messages` is how many were said in it by then.

    Once retention has removed those, `messages` is 0.
    `stored_bytes` is what it added on the disk; `run_id` the run that was under way, or ""; `step` is the last one of
    that run that is in it, 0 where it was not taken between two steps.
    """

    id: str
    tenant: str
    thread: str
    created_us: int
    created_by: str
    comment: str
    run_id: str
    messages: int
    files: int
    size_bytes: int
    stored_bytes: int
    skipped: int
    stripped: int
    thread_id: str = ""
    kind: str = ASKED
    step: int = 0

    @property
    def automatic(self) -> bool:
        """Whether nobody asked for it by its own."""
        return self.kind != ASKED


_COLUMNS = tuple(snapshots.c[name] for name in Snapshot.__dataclass_fields__)


class SnapshotStore:
    """Typed access to snapshots."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def add(self, snapshot: Snapshot, request: tuple[str, str], told: AuditEntry) -> frozenset[str]:
        """Write a snapshot and its record; return what it replaces. `request` is its request's id, or "", and digest.

        One of a step takes the place of those of the same run from that step on, which an earlier gateway had taken.
        ThreadGoing where its thread goes, ConstraintViolated where another has the request's id.
        """
        id_, digest = request

        def work(connection: Connection) -> frozenset[str]:
            query = select(threads.c.deletion).where(threads.c.id == snapshot.thread_id).with_for_update()
            found = connection.execute(query).first()
            if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
                raise ThreadGoing
            replaced: frozenset[str] = frozenset()
            if snapshot.step:
                of_run = (snapshots.c.thread_id == snapshot.thread_id) & (snapshots.c.run_id == snapshot.run_id)
                later = of_run & (snapshots.c.step >= snapshot.step)
                replaced = frozenset(row.id for row in connection.execute(select(snapshots.c.id).where(later)))
                connection.execute(delete(snapshots).where(later))
            said = snapshot.messages
            if not snapshot.step:  # no run keeps retention from removing messages while the files are read
                said = min(said, int(connection.execute(_message_count(snapshot.thread_id)).scalar_one()))
            row = {
                **asdict(snapshot),
                "messages": said,
                "request_id": id_ or None,
                "request_digest": digest if id_ else None,
            }
            connection.execute(insert(snapshots), row)
            self._audit.append(connection, entries=[told])
            return replaced

        return await self._database.transact(work)

    async def get(self, tenant: str, id_: str) -> Snapshot | None:
        """Return a snapshot of a tenant."""
        query = select(*_COLUMNS).where(snapshots.c.tenant == tenant, snapshots.c.id == id_)
        found = await self._database.rows(query)
        return _snapshot(found[0]) if found else None

    async def of_request(self, tenant: str, request_id: str) -> tuple[Snapshot, str] | None:
        """Return the snapshot that a request id was given to, and the digest of that request."""
        query = select(*_COLUMNS, snapshots.c.request_digest).where(
            snapshots.c.tenant == tenant, snapshots.c.request_id == request_id
        )
        found = await self._database.rows(query)
        return (_snapshot(found[0]), found[0].request_digest) if found else None

    async def page(self, tenant: str, *, thread: str, before: Place | None, limit: int) -> Sequence[Snapshot]:
        """Return snapshots, the newest first; of one thread where one is named."""
        columns = snapshots.c
        conditions = [columns.tenant == tenant]
        conditions += [columns.thread == thread] if thread else []
        if before is not None:
            place = tuple_(bindparam("before_us", before[0]), bindparam("before_id", before[1]))
            conditions += [tuple_(columns.created_us, columns.id) < place]
        query = select(*_COLUMNS).where(*conditions).order_by(columns.created_us.desc(), columns.id.desc()).limit(limit)
        return [_snapshot(row) for row in await self._database.rows(query)]

    async def ids(self, tenant: str) -> frozenset[str]:
        """Return the ids of a tenant's snapshots."""
        found = await self._database.rows(select(snapshots.c.id).where(snapshots.c.tenant == tenant))
        return frozenset(row.id for row in found)

    async def automatic(self, tenant: str) -> Sequence[Snapshot]:
        """Return the snapshots of a tenant that nobody asked for by their own, the oldest first."""
        of_tenant = (snapshots.c.tenant == tenant) & (snapshots.c.kind != ASKED)
        query = select(*_COLUMNS).where(of_tenant).order_by(snapshots.c.created_us, snapshots.c.id)
        return [_snapshot(row) for row in await self._database.rows(query)]

    async def of_thread(self, thread_id: str) -> Sequence[Snapshot]:
        """Return the snapshots of a thread, the oldest first."""
        query = select(*_COLUMNS).where(snapshots.c.thread_id == thread_id)
        found = await self._database.rows(query.order_by(snapshots.c.created_us, snapshots.c.id))
        return [_snapshot(row) for row in found]

    async def threadless(self, tenant: str) -> frozenset[str]:
        """Return the ids of a tenant's snapshots whose threads are gone: nothing of those may be left."""
        there = select(threads.c.id).where(threads.c.tenant == tenant)
        query = select(snapshots.c.id).where(snapshots.c.tenant == tenant, snapshots.c.thread_id.not_in(there))
        return frozenset(row.id for row in await self._database.rows(query))

    async def tenants(self) -> Sequence[str]:
        """Return who has snapshots."""
        return [row.tenant for row in await self._database.rows(select(snapshots.c.tenant).distinct())]

    async def remove(self, tenant: str, id_: str, told: AuditEntry) -> bool:
        """Remove a snapshot; return whether there was one."""

        def work(connection: Connection) -> bool:
            gone = delete(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.id == id_)
            if not connection.execute(gone).rowcount:
                return False
            self._audit.append(connection, entries=[told])
            return True

        return await self._database.transact(work)

    async def message_count(self, thread_id: str) -> int:
        """Return how many messages a thread has."""
        return int((await self._database.rows(_message_count(thread_id)))[0].messages)


def _message_count(thread_id: str) -> Select[Any]:
    return select(func.count().label("messages")).where(messages.c.thread_id == thread_id)


def _snapshot(row: Any) -> Snapshot:
    return Snapshot(**{name: getattr(row, name) for name in Snapshot.__dataclass_fields__})
