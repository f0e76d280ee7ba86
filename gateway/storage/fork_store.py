"""The queries of forks: a thread made of another, which nobody sees before it is whole.

Its row is there from the beginning, so that nobody else has its name, with a mark that hides it and lets nothing begin
in it (thread_marks.py). Messages, metadata and the end of the mark are written together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, exists, func, insert, literal, select, update

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import refuse_under_way, remove_rows
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.restore_store import ThreadGoing, WorkspaceRequest, answer_request, claim_request
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.tables import messages, snapshots, thread_metadata, threads
from gateway.storage.thread_marks import FORKING, RESTORING
from gateway.storage.thread_store import MessageRow
from gateway.support.clock import NowUs, now_us

_MESSAGES = messages.c


class ForkStore:
    """Typed access to forks."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def is_taken(self, tenant: str, name: str, limit: int) -> bool:
        """Return whether there is a thread of a name, also one that nobody sees; else QuotaExceeded as begin() does.

        It spares work that would be for nothing: begin() has the last word.
        """

        def work(connection: Connection) -> bool:
            query = select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
            if connection.execute(query).first() is not None:
                return True
            refuse_more_threads(connection, tenant, limit)
            return False

        return await self._database.transact(work)

    async def begin(self, thread: Thread, mark: str, limit: int, request: WorkspaceRequest | None) -> None:
        """Make a thread that nobody sees; QuotaExceeded where it is one past `limit`.

        ConstraintViolated where there is one of its name, also one that nobody sees, or another has the request's id.
        """
        row = {"id": thread.id, "tenant": thread.tenant, "name": thread.name, "created_us": self._clock()}

        def work(connection: Connection) -> None:
            refuse_more_threads(connection, thread.tenant, limit)
            connection.execute(insert(threads), {**row, "deletion": mark})
            if request is not None:
                claim_request(connection, request, thread.id, self._clock())

        await self._database.transact(work)

    async def end(
        self,
        thread: Thread,
        mark: str,
        snapshot: Snapshot,
        count: int,
        metadata: Mapping[str, str],
        *,
        told: AuditEntry,
        request: WorkspaceRequest | None,
    ) -> int:
        """Give a thread the first `count` messages of a snapshot's thread and its metadata, and let it be seen.

        Return how many messages there were: none where retention removed them since the snapshot was read, for those at
        their positions were said later. ThreadGoing where either thread is gone, or goes.
        """
        kept_us = self._clock()
        values = [
            {"thread_id": thread.id, "key": key, "value": value, "updated_us": kept_us}
            for key, value in metadata.items()
        ]
        source = snapshot.thread_id
        still = select(snapshots.c.id).where(snapshots.c.id == snapshot.id, snapshots.c.messages == snapshot.messages)
        chosen = (_MESSAGES.thread_id == source) & (_MESSAGES.position < count) & exists(still)
        copied = select(literal(thread.id), _MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message).where(chosen)

        def work(connection: Connection) -> int:
            own = (threads.c.id == thread.id) & (threads.c.deletion == mark)
            query = select(threads.c.deletion).where(threads.c.id == source).with_for_update()
            found = connection.execute(query).first()
            if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
                raise ThreadGoing
            if not connection.execute(update(threads).where(own).values(deletion=None, used_us=kept_us)).rowcount:
                raise ThreadGoing
            columns = ["thread_id", "position", "run_id", "message"]
            connection.execute(insert(messages).from_select(columns, copied))
            if values:
                connection.execute(insert(thread_metadata), values)
            if request is not None:
                answer_request(connection, request)
            self._audit.append(connection, entries=[told])
            written = select(func.count()).where(_MESSAGES.thread_id == thread.id)
            return int(connection.execute(written).scalar_one())

        return await self._database.transact(work)

    async def undo(self, thread_id: str) -> None:
        """Remove a thread that nobody saw; one that is seen by now, or is being deleted, stays."""

        def work(connection: Connection) -> None:
            hidden = threads.c.deletion.startswith(FORKING, autoescape=True)
            if connection.execute(select(threads.c.id).where(threads.c.id == thread_id, hidden)).first() is not None:
                remove_rows(connection, thread_id)

        await self._database.transact(work)

    async def refuse_busy(self, thread_id: str) -> None:
        """Raise RunUnderWay or CallUnderWay where anything is under way in a thread.

        ThreadGoing where it goes, and where a restore of its files was cut short: nobody knows what they are.
        """

        def work(connection: Connection) -> None:
            whole = select(threads.c.id).where(threads.c.id == thread_id, threads.c.deletion.is_(None))
            if connection.execute(whole).first() is None:
                raise ThreadGoing
            refuse_under_way(connection, thread_id)

        await self._database.transact(work)

    async def half_made(self, tenant: str | None = None) -> Sequence[Thread]:
        """Return the threads, of a tenant where one is named, that nobody sees: under way, or left by the dead."""
        query = select(threads.c.id, threads.c.tenant, threads.c.name)
        query = query.where(threads.c.deletion.startswith(FORKING, autoescape=True))
        query = query if tenant is None else query.where(threads.c.tenant == tenant)
        return [Thread(row.id, row.tenant, row.name) for row in await self._database.rows(query)]

    async def last_said(self, thread_id: str, count: int, limit: int) -> Sequence[MessageRow]:
        """Return the last of the first `count` messages of a thread, `limit` at most, the oldest first."""
        query = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
        query = query.where(_MESSAGES.thread_id == thread_id, _MESSAGES.position < count)
        found = await self._database.rows(query.order_by(_MESSAGES.position.desc()).limit(limit))
        return [MessageRow(row.position, row.run_id, row.message) for row in reversed(found)]

    async def said_in(self, thread_id: str, run_id: str, since: int) -> Sequence[MessageRow]:
        """Return what a run said in a thread from a position on, the oldest first."""
        query = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
        query = query.where(_MESSAGES.thread_id == thread_id, _MESSAGES.run_id == run_id, _MESSAGES.position >= since)
        found = await self._database.rows(query.order_by(_MESSAGES.position))
        return [MessageRow(row.position, row.run_id, row.message) for row in found]
