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
from gateway.storage.rows import matching
from gateway.storage.run_writes import metadata_rows
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.tables import messages, snapshots, thread_metadata, threads
from gateway.storage.thread_marks import FORKING, ThreadGoing, lock_thread
from gateway.storage.thread_store import MessageRow

_MESSAGES = messages.c
_ROWS = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
_HALF_MADE = threads.c.deletion.startswith(FORKING, autoescape=True)


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
        """Return whether a name is taken, even invisibly; QuotaExceeded as of begin(), which decides."""
        query = select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
        if connection.execute(query).first() is not None:
            return True
        refuse_more_threads(connection, tenant, limit)
        return False

    @transaction
    def begin(
        self, connection: Connection, thread: Thread, mark: str, limit: int, request: WorkspaceRequest | None
    ) -> None:
        """Create an invisible thread. Raises QuotaExceeded; ConstraintViolated if its name or request id is taken."""
        refuse_more_threads(connection, thread.tenant, limit)
        connection.execute(insert(threads), {**vars(thread), "created_us": self.clock(), "deletion": mark})
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
        if connection.execute(select(threads.c.id).where(threads.c.id == thread_id, _HALF_MADE)).first() is not None:
            remove_rows(connection, thread_id)

    @transaction
    def refuse_busy(self, connection: Connection, thread_id: str) -> None:
        """Raise RunUnderWay or CallUnderWay; ThreadGoing if its files are unknown or it is being deleted."""
        whole = select(threads.c.id).where(threads.c.id == thread_id, threads.c.deletion.is_(None))
        if connection.execute(whole).first() is None:
            raise ThreadGoing
        refuse_under_way(connection, thread_id)

    async def half_made(self, tenant: str | None = None) -> Sequence[Thread]:
        """Return the invisible threads, all or a tenant's: forks in progress, or left by gateways that died."""
        query = select(threads).where(_HALF_MADE, *matching({threads.c.tenant: tenant}))
        return await self._all(Thread, query)

    async def last_said(self, thread_id: str, count: int, limit: int) -> Sequence[MessageRow]:
        """Return the last of the first `count` messages of a thread, at most `limit`, oldest first."""
        query = _ROWS.where(_MESSAGES.thread_id == thread_id, _MESSAGES.position < count)
        return (await self._all(MessageRow, query.order_by(_MESSAGES.position.desc()).limit(limit)))[::-1]

    async def said_in(self, thread_id: str, run_id: str, since: int) -> Sequence[MessageRow]:
        """Return what a run added to a thread's messages from a position on, oldest first."""
        query = _ROWS.where(_MESSAGES.thread_id == thread_id, _MESSAGES.run_id == run_id, _MESSAGES.position >= since)
        return await self._all(MessageRow, query.order_by(_MESSAGES.position))
