"""The queries of snapshots. See also restore_store.py."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from gateway.storage.audit_store import AuditEntry
from gateway.storage.queries import Queries, mapped, matching, page_of, transaction
from gateway.storage.tables import messages, snapshots, threads
from gateway.storage.thread_store import lock_thread
from gateway.support.paging import Place

ASKED, STEP, RUN, FORK = "asked", "step", "run", "fork"
"""Why a snapshot was taken: on request, at the end of a step or a run, or for a fork. All but those on request are
automatic: they are removed for newer ones, and with their thread."""


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
        self, connection: Connection, snapshot: Snapshot, request: tuple[str, str], entry: AuditEntry
    ) -> frozenset[str]:
        """Write a snapshot and its audit entry; return the ids that it replaces.

        `request` is the request id, or "", and digest. A step's snapshot replaces those of the same run from that step
        on, taken by an earlier gateway. ThreadBusy if its thread is being deleted, ConstraintViolated if another
        snapshot has the request id.
        """
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
