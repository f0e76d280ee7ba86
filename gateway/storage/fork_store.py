"""The queries of forks: a thread made of another, invisible until it is complete.

Its row exists from the beginning, so that its name is taken, with a mark that hides it and keeps anything from
beginning in it (thread_marks.py). Messages, metadata and the end of the mark are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, exists, func, insert, literal, select, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import refuse_under_way, remove_rows
from gateway.storage.queries import Queries, transaction
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.restore_store import WorkspaceRequest, answer_request, claim_request
from gateway.storage.rows import mapped
from gateway.storage.run_writes import metadata_rows
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.tables import messages, snapshots, thread_metadata, threads
from gateway.storage.thread_marks import FORKING, ThreadGoing, lock_thread
from gateway.storage.thread_store import MessageRow

_MESSAGES = messages.c


@dataclass(frozen=True)
class Fork:
    """A fork in progress: its thread, the mark that hides it, the number of messages to copy, and its metadata."""

    thread: Thread
    mark: str
    messages: int
    metadata: Mapping[str, str]
    request: WorkspaceRequest | None = None


class ForkStore(Queries):
    """Typed access to forks."""

    @transaction
    def is_taken(self, connection: Connection, tenant: str, name: str, limit: int) -> bool:
        """Return whether there is a thread of a name, even an invisible one.

        If not, QuotaExceeded as begin() raises it.

        It saves useless work; begin() decides.
        """
        query = select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
        if connection.execute(query).first() is not None:
            return True
        refuse_more_threads(connection, tenant, limit)
        return False

    @transaction
    def begin(
        self, connection: Connection, thread: Thread, mark: str, limit: int, request: WorkspaceRequest | None
    ) -> None:
        """Create an invisible thread; QuotaExceeded if it would exceed `limit`.

        ConstraintViolated if there is a thread of its name, even an invisible one, or another has the request id.
        """
        row = {**vars(thread), "created_us": self.clock()}
        refuse_more_threads(connection, thread.tenant, limit)
        connection.execute(insert(threads), {**row, "deletion": mark})
        if request is not None:
            claim_request(connection, request, thread.id, self.clock())

    @transaction
    def end(self, connection: Connection, fork: Fork, snapshot: Snapshot, entry: AuditEntry) -> int:
        """Give a fork its messages, those of the snapshot's thread, and its metadata, and make it visible.

        Return how many messages it has: 0 if retention removed them since the snapshot was read, as those now at their
        positions came later. ThreadGoing if either thread is gone or being deleted.
        """
        thread, kept_us = fork.thread, self.clock()
        values = metadata_rows(thread.id, fork.metadata, kept_us)
        source = snapshot.thread_id
        still = select(snapshots.c.id).where(snapshots.c.id == snapshot.id, snapshots.c.messages == snapshot.messages)
        chosen = (_MESSAGES.thread_id == source) & (_MESSAGES.position < fork.messages) & exists(still)
        copied = select(literal(thread.id), _MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message).where(chosen)
        own = (threads.c.id == thread.id) & (threads.c.deletion == fork.mark)
        lock_thread(connection, source)
        if not connection.execute(update(threads).where(own).values(deletion=None, used_us=kept_us)).rowcount:
            raise ThreadGoing
        columns = ["thread_id", "position", "run_id", "message"]
        connection.execute(insert(messages).from_select(columns, copied))
        if values:
            connection.execute(insert(thread_metadata), values)
        if fork.request is not None:
            answer_request(connection, fork.request)
        self.audit.append(connection, entry)
        written = select(func.count()).where(_MESSAGES.thread_id == thread.id)
        return int(connection.execute(written).scalar_one())

    @transaction
    def undo(self, connection: Connection, thread_id: str) -> None:
        """Delete an invisible thread; one that is visible by now, or is being deleted, stays."""
        hidden = threads.c.deletion.startswith(FORKING, autoescape=True)
        if connection.execute(select(threads.c.id).where(threads.c.id == thread_id, hidden)).first() is not None:
            remove_rows(connection, thread_id)

    @transaction
    def refuse_busy(self, connection: Connection, thread_id: str) -> None:
        """Raise RunUnderWay or CallUnderWay if anything is under way in a thread.

        ThreadGoing if it is being deleted, or a restore was interrupted, so that its files are unknown.
        """
        whole = select(threads.c.id).where(threads.c.id == thread_id, threads.c.deletion.is_(None))
        if connection.execute(whole).first() is None:
            raise ThreadGoing
        refuse_under_way(connection, thread_id)

    async def half_made(self, tenant: str | None = None) -> Sequence[Thread]:
        """Return the invisible threads, all or a tenant's: forks in progress, or left by gateways that died."""
        query = select(threads.c.id, threads.c.tenant, threads.c.name)
        query = query.where(threads.c.deletion.startswith(FORKING, autoescape=True))
        query = query if tenant is None else query.where(threads.c.tenant == tenant)
        return [Thread(row.id, row.tenant, row.name) for row in await self._database.rows(query)]

    async def last_said(self, thread_id: str, count: int, limit: int) -> Sequence[MessageRow]:
        """Return the last of the first `count` messages of a thread, at most `limit`, oldest first."""
        query = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
        query = query.where(_MESSAGES.thread_id == thread_id, _MESSAGES.position < count)
        found = await self._database.rows(query.order_by(_MESSAGES.position.desc()).limit(limit))
        return [mapped(MessageRow, row) for row in reversed(found)]

    async def said_in(self, thread_id: str, run_id: str, since: int) -> Sequence[MessageRow]:
        """Return what a run added to a thread's messages from a position on, oldest first."""
        query = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
        query = query.where(_MESSAGES.thread_id == thread_id, _MESSAGES.run_id == run_id, _MESSAGES.position >= since)
        found = await self._database.rows(query.order_by(_MESSAGES.position))
        return [mapped(MessageRow, row) for row in found]
