"""The queries of restores and forks: which are in progress, and which requests were answered.

A thread whose files are being replaced has a mark in threads.deletion, so nothing begins in it. The mark of a gateway
that died stays: the workspace is unknown until it is restored again. A fork is a thread made of another. Its row exists
from the beginning, so that its name is taken, with a mark that hides it (thread_store.py). Its messages, its metadata
and the end of the mark are written in one transaction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, exists, func, insert, literal, select, update

from gateway.errors import RequestIdReused
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import refuse_under_way, remove_rows
from gateway.storage.queries import Queries, matching, transaction
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.request_store import REMEMBERED_US
from gateway.storage.run_writes import metadata_rows
from gateway.storage.snapshot_store import Snapshot
from gateway.storage.tables import messages, snapshots, thread_metadata, threads, workspace_requests
from gateway.storage.thread_store import FORKING, RESTORING, MessageRow, going, lock_thread

_REQUESTS = workspace_requests.c


@dataclass(frozen=True)
class WorkspaceRequest:
    """A restore or a fork with a request id. `answer` is None until it is done."""

    tenant: str
    id: str
    digest: str
    answer: str | None = None


class RestoreStore(Queries):
    """Typed access to restores, and to the requests of restores and forks."""

    async def request(self, tenant: str, id_: str) -> WorkspaceRequest | None:
        query = select(_REQUESTS.request_digest, _REQUESTS.answer)
        found = await self._database.first(query.where(_REQUESTS.tenant == tenant, _REQUESTS.request_id == id_))
        return None if found is None else WorkspaceRequest(tenant, id_, found.request_digest, found.answer)

    async def answer(self, request: WorkspaceRequest | None) -> Any | None:
        """Return the answer to a repeated request, parsed; None if there is none. Raises RequestIdReused."""
        if request is None or (known := await self.request(request.tenant, request.id)) is None:
            return None
        if known.digest != request.digest:
            raise RequestIdReused(
                f"request_id: {request.id!r} was already used for a different request; use a new one for each request"
            )
        return json.loads(known.answer or "null")

    @transaction
    def begin(
        self, connection: Connection, thread: Thread, mark: str, request: WorkspaceRequest | None = None
    ) -> str | None:
        """Close a thread; return an earlier restore's mark. ThreadBusy changes nothing."""
        earlier = lock_thread(connection, thread.id, thread.name)
        refuse_under_way(connection, thread.id, thread.name)
        connection.execute(update(threads).where(threads.c.id == thread.id).values(deletion=mark))
        claim_request(connection, request, thread.id, self.clock())
        return earlier

    async def give_up(self, thread_id: str, mark: str, earlier: str | None) -> None:
        """Return a thread to its state before `begin`: its workspace is unchanged."""
        own = (threads.c.id == thread_id) & (threads.c.deletion == mark)
        await self._database.write((update(threads).where(own).values(deletion=earlier), None))

    @transaction
    def end(
        self, connection: Connection, thread_id: str, entry: AuditEntry, request: WorkspaceRequest | None = None
    ) -> None:
        """Let runs and calls begin in a restored thread again; `request` has its answer."""
        restoring = threads.c.deletion.startswith(RESTORING, autoescape=True)
        connection.execute(update(threads).where(threads.c.id == thread_id, restoring).values(deletion=None))
        answer_request(connection, request)
        self.audit.append(connection, entry)


def claim_request(connection: Connection, request: WorkspaceRequest | None, thread_id: str, at_us: int) -> None:
    """Write that a request, if any, begins, replacing only its own earlier attempt; delete those older than a day."""
    if request is None:
        return
    of_tenant = _REQUESTS.tenant == request.tenant
    again = (_REQUESTS.request_id == request.id) & _REQUESTS.answer.is_(None)
    forgotten = of_tenant & (again | (_REQUESTS.at_us < at_us - REMEMBERED_US))
    connection.execute(delete(workspace_requests).where(forgotten))
    row = {"tenant": request.tenant, "request_id": request.id, "request_digest": request.digest}
    connection.execute(insert(workspace_requests), {**row, "thread_id": thread_id, "answer": None, "at_us": at_us})


def answer_request(connection: Connection, request: WorkspaceRequest | None) -> None:
    """Write the answer of a request, if any, if its thread still exists."""
    if request is not None:
        of_id = (_REQUESTS.tenant == request.tenant) & (_REQUESTS.request_id == request.id)
        connection.execute(update(workspace_requests).where(of_id).values(answer=request.answer))


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
        claim_request(connection, request, thread.id, self.clock())

    @transaction
    def end(self, connection: Connection, fork: Fork, snapshot: Snapshot, entry: AuditEntry) -> int:
        """Give a fork its messages, those of the snapshot's thread, and its metadata, and make it visible.

        Return how many messages it has: 0 if retention removed them since the snapshot was read, as those now at their
        positions came later. ThreadBusy if either thread is gone or being deleted.
        """
        thread, kept_us = fork.thread, self.clock()
        values = metadata_rows(thread.id, fork.metadata, kept_us)
        source = snapshot.thread_id
        still = select(snapshots.c.id).where(snapshots.c.id == snapshot.id, snapshots.c.messages == snapshot.messages)
        chosen = (_MESSAGES.thread_id == source) & (_MESSAGES.position < fork.messages) & exists(still)
        copied = select(literal(thread.id), _MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message).where(chosen)
        own = (threads.c.id == thread.id) & (threads.c.deletion == fork.mark)
        lock_thread(connection, source, snapshot.thread)
        if not connection.execute(update(threads).where(own).values(deletion=None, used_us=kept_us)).rowcount:
            raise going(snapshot.thread)
        columns = ["thread_id", "position", "run_id", "message"]
        connection.execute(insert(messages).from_select(columns, copied))
        if values:
            connection.execute(insert(thread_metadata), values)
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
    def refuse_busy(self, connection: Connection, thread_id: str, name: str) -> None:
        """Raise ThreadBusy for a thread with a run or a call, with unknown files, or that is being deleted."""
        whole = select(threads.c.id).where(threads.c.id == thread_id, threads.c.deletion.is_(None))
        if connection.execute(whole).first() is None:
            raise going(name)
        refuse_under_way(connection, thread_id, name, "wait for it, or fork at one of its steps")

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
