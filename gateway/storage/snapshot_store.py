"""The queries of snapshots, and of restores and forks: which are in progress, and which requests were answered.

A thread whose files are being replaced has a mark in threads.deletion, so nothing begins in it. The mark of a gateway
that died stays: the workspace is unknown until it is restored again. A fork is a thread made of another. Its row exists
from the beginning, so that its name is taken, with a mark that hides it (thread_store.py). Its messages, its metadata
and the end of the mark are written in one transaction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, exists, func, insert, literal, select, update

from gateway.errors import RequestIdReused
from gateway.storage.audit_store import AuditEntry
from gateway.storage.call_journal import REMEMBERED_US
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import refuse_under_way, remove_rows
from gateway.storage.lock_store import refuse_lost
from gateway.storage.queries import Queries, mapped, matching, page_of, transaction
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.run_writes import metadata_rows
from gateway.storage.tables import messages, snapshots, thread_metadata, threads, workspace_requests
from gateway.storage.thread_store import FORKING, RESTORING, MessageRow, going, lock_thread
from gateway.support.paging import Place

ASKED, STEP, RUN, FORK = "asked", "step", "run", "fork"
"""Why a snapshot was taken: on request, at the end of a step or a run, or for a fork. All but those on request are
automatic: they are removed for newer ones, and with their thread."""

_REQUESTS = workspace_requests.c
_MESSAGES = messages.c
_ROWS = select(_MESSAGES.position, _MESSAGES.run_id, _MESSAGES.message)
_HALF_MADE = threads.c.deletion.startswith(FORKING, autoescape=True)


@dataclass(frozen=True)
class Snapshot:
    """A row. `thread` is the name of the thread it was taken of, `messages` how many messages that had.

    `messages` is 0 once retention has removed them. `stored_bytes` is what it added on the disk. `run_id` is the run
    that was under way, or "", and `step` the last step of it that is included, 0 if it was not taken between two steps.
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
        return self.kind != ASKED


class SnapshotStore(Queries):
    """Typed access to snapshots."""

    @transaction
    def add(
        self, connection: Connection, snapshot: Snapshot, request: tuple[str, str], entry: AuditEntry, lock: str = ""
    ) -> frozenset[str]:
        """Write a snapshot and its audit entry; return the ids that it replaces.

        `request` is the request id, or "", and digest. A step's snapshot replaces those of the same run from that step
        on, taken by an earlier gateway. ThreadBusy if its thread is being deleted, ConstraintViolated if another
        snapshot has the request id, Unavailable if the lock was lost.
        """
        refuse_lost(connection, lock)
        id_, digest = request
        lock_thread(connection, snapshot.thread_id, snapshot.thread)
        replaced: frozenset[str] = frozenset()
        if snapshot.step:
            of_run = (snapshots.c.thread_id == snapshot.thread_id) & (snapshots.c.run_id == snapshot.run_id)
            later = of_run & (snapshots.c.step >= snapshot.step)
            replaced = frozenset(row.id for row in connection.execute(select(snapshots.c.id).where(later)))
            connection.execute(delete(snapshots).where(later))
        said = snapshot.messages
        if not snapshot.step:  # without a run, retention may remove messages while the files are read
            count = select(func.count()).where(messages.c.thread_id == snapshot.thread_id)
            said = min(said, connection.execute(count).scalar_one())
        request_row = {"request_id": id_ or None, "request_digest": digest if id_ else None}
        connection.execute(insert(snapshots), asdict(snapshot) | {"messages": said} | request_row)
        self.audit.append(connection, entry)
        return replaced

    async def get(self, tenant: str, id_: str) -> Snapshot | None:
        return await self._one(Snapshot, select(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.id == id_))

    async def of_request(self, tenant: str, request_id: str) -> tuple[Snapshot, str] | None:
        query = select(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.request_id == request_id)
        found = await self._database.first(query)
        return None if found is None else (mapped(Snapshot, found), found.request_digest)

    async def page(self, tenant: str, *, thread: str, before: Place | None, limit: int) -> Sequence[Snapshot]:
        query = select(snapshots).where(snapshots.c.tenant == tenant, *matching({snapshots.c.thread: thread}))
        return await self._all(Snapshot, page_of(query, snapshots, before, limit))

    async def ids_of(self, tenant: str) -> frozenset[str]:
        return await self._ids(snapshots.c.tenant == tenant)

    async def automatic(self, tenant: str) -> Sequence[Snapshot]:
        return await self._oldest_first((snapshots.c.tenant == tenant) & (snapshots.c.kind != ASKED))

    async def of_thread(self, thread_id: str) -> Sequence[Snapshot]:
        return await self._oldest_first(snapshots.c.thread_id == thread_id)

    async def _oldest_first(self, which: ColumnElement[bool]) -> Sequence[Snapshot]:
        query = select(snapshots).where(which).order_by(snapshots.c.created_us, snapshots.c.id)
        return await self._all(Snapshot, query)

    async def threadless(self, tenant: str) -> frozenset[str]:
        """Return the ids of a tenant's snapshots whose threads are gone: nothing of the threads may be left."""
        there = select(threads.c.id).where(threads.c.tenant == tenant)
        return await self._ids((snapshots.c.tenant == tenant) & snapshots.c.thread_id.not_in(there))

    async def _ids(self, which: ColumnElement[bool]) -> frozenset[str]:
        return frozenset(row.id for row in await self._database.rows(select(snapshots.c.id).where(which)))

    async def tenants(self) -> Sequence[str]:
        return [row.tenant for row in await self._database.rows(select(snapshots.c.tenant).distinct())]

    @transaction
    def remove(self, connection: Connection, tenant: str, id_: str, entry: AuditEntry) -> bool:
        gone = delete(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.id == id_)
        if not connection.execute(gone).rowcount:
            return False
        self.audit.append(connection, entry)
        return True


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

    async def said_in(self, thread_id: str, run_id: str) -> Sequence[MessageRow]:
        """Return what a run added to a thread's messages, oldest first."""
        query = _ROWS.where(_MESSAGES.thread_id == thread_id, _MESSAGES.run_id == run_id)
        return await self._all(MessageRow, query.order_by(_MESSAGES.position))
