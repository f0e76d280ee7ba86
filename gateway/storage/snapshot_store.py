"""The queries of snapshots: what a tenant has kept of its threads' files, and which thread is being restored.

A thread whose files are being replaced has a mark in the place of a deletion's id (threads.deletion), so nothing begins
in it. The mark of a gateway that died stays: nobody knows what is in that workspace, until it is restored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, tuple_, update

from gateway.clock import NowUs, now_us
from gateway.paging import Place
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.erasure_store import refuse_under_way
from gateway.storage.tables import messages, snapshots, threads

RESTORING = "rst_"
"""How a mark begins: what else stands in its place is a deletion."""


class ThreadGoing(Exception):
    """The thread is gone, or is being deleted."""


@dataclass(frozen=True)
class Snapshot:
    """A row. `thread` is the name of the thread it was taken of, `messages` is how many were said in it by then.

    `stored_bytes` is what it added on the disk; `run_id` the run that was under way, or "".
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


_COLUMNS = tuple(snapshots.c[name] for name in Snapshot.__dataclass_fields__)


class SnapshotStore:
    """Typed access to snapshots."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def add(self, snapshot: Snapshot, thread_id: str, request: tuple[str, str], told: AuditEntry) -> None:
        """Write a snapshot and its record; `request` is its request's id, or "", and digest.

        ThreadGoing where its thread goes, ConstraintViolated where another has the request's id.
        """
        id_, digest = request

        def work(connection: Connection) -> None:
            query = select(threads.c.deletion).where(threads.c.id == thread_id).with_for_update()
            found = connection.execute(query).first()
            if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
                raise ThreadGoing
            row = {**asdict(snapshot), "request_id": id_ or None, "request_digest": digest if id_ else None}
            connection.execute(insert(snapshots), row)
            self._audit.append(connection, entries=[told])

        await self._database.transact(work)

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
        query = select(func.count().label("messages")).where(messages.c.thread_id == thread_id)
        return int((await self._database.rows(query))[0].messages)

    async def begin_restore(self, thread_id: str, mark: str) -> str | None:
        """Let nothing begin in a thread any more; return the mark that a restore before this one left.

        Raises ThreadGoing, RunUnderWay and CallUnderWay, with nothing changed.
        """

        def work(connection: Connection) -> str | None:
            query = select(threads.c.deletion).where(threads.c.id == thread_id).with_for_update()
            found = connection.execute(query).first()
            if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
                raise ThreadGoing
            refuse_under_way(connection, thread_id)
            connection.execute(update(threads).where(threads.c.id == thread_id).values(deletion=mark))
            earlier: str | None = found.deletion
            return earlier

        return await self._database.transact(work)

    async def give_up_restore(self, thread_id: str, mark: str, earlier: str | None) -> None:
        """Have a thread as it was before `begin_restore`: nothing was changed in its workspace."""
        own = (threads.c.id == thread_id) & (threads.c.deletion == mark)
        await self._database.write((update(threads).where(own).values(deletion=earlier), None))

    async def end_restore(self, thread_id: str, told: AuditEntry) -> None:
        """Let runs and calls begin in a thread again whose files are whole."""

        def work(connection: Connection) -> None:
            restoring = threads.c.deletion.startswith(RESTORING, autoescape=True)
            connection.execute(update(threads).where(threads.c.id == thread_id, restoring).values(deletion=None))
            self._audit.append(connection, entries=[told])

        await self._database.transact(work)


def _snapshot(row: Any) -> Snapshot:
    return Snapshot(**{name: getattr(row, name) for name in Snapshot.__dataclass_fields__})
