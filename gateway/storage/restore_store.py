"""The queries of restores: which thread is being restored, and which requests were answered.

A thread whose files are being replaced has a mark in the place of a deletion's id (threads.deletion), so nothing begins
in it. The mark of a gateway that died stays: nobody knows what is in that workspace, until it is restored again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.erasure_store import refuse_under_way
from gateway.storage.request_store import REMEMBERED_US
from gateway.storage.tables import threads, workspace_requests
from gateway.storage.thread_marks import RESTORING
from gateway.support.clock import NowUs, now_us

_REQUESTS = workspace_requests.c


class ThreadGoing(Exception):
    """The thread is gone, or is being deleted."""


@dataclass(frozen=True)
class WorkspaceRequest:
    """A restore or a fork with a request id. `answer` is None as long as it is not done."""

    tenant: str
    id: str
    digest: str
    answer: str | None = None


class RestoreStore:
    """Typed access to restores, and to the requests of restores and forks."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def request(self, tenant: str, id_: str) -> WorkspaceRequest | None:
        """Return what is known of a request id."""
        query = select(_REQUESTS.request_digest, _REQUESTS.answer).where(
            _REQUESTS.tenant == tenant, _REQUESTS.request_id == id_
        )
        found = await self._database.rows(query)
        return WorkspaceRequest(tenant, id_, found[0].request_digest, found[0].answer) if found else None

    async def begin(self, thread_id: str, mark: str, request: WorkspaceRequest | None = None) -> str | None:
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
            if request is not None:
                claim_request(connection, request, thread_id, self._clock())
            earlier: str | None = found.deletion
            return earlier

        return await self._database.transact(work)

    async def give_up(self, thread_id: str, mark: str, earlier: str | None) -> None:
        """Have a thread as it was before `begin`: nothing was changed in its workspace."""
        own = (threads.c.id == thread_id) & (threads.c.deletion == mark)
        await self._database.write((update(threads).where(own).values(deletion=earlier), None))

    async def end(self, thread_id: str, told: AuditEntry, request: WorkspaceRequest | None = None) -> None:
        """Let runs and calls begin in a thread again whose files are whole; `request` has its answer."""

        def work(connection: Connection) -> None:
            restoring = threads.c.deletion.startswith(RESTORING, autoescape=True)
            connection.execute(update(threads).where(threads.c.id == thread_id, restoring).values(deletion=None))
            if request is not None:
                answer_request(connection, request)
            self._audit.append(connection, entries=[told])

        await self._database.transact(work)


def claim_request(connection: Connection, request: WorkspaceRequest, thread_id: str, at_us: int) -> None:
    """Write that a request is begun, in the place of its own earlier attempt; nobody else's has its id.

    Those of a day before are forgotten.
    """
    of_tenant = _REQUESTS.tenant == request.tenant
    again = (_REQUESTS.request_id == request.id) & _REQUESTS.answer.is_(None)
    forgotten = of_tenant & (again | (_REQUESTS.at_us < at_us - REMEMBERED_US))
    connection.execute(delete(workspace_requests).where(forgotten))
    row = {"tenant": request.tenant, "request_id": request.id, "request_digest": request.digest}
    connection.execute(insert(workspace_requests), {**row, "thread_id": thread_id, "answer": None, "at_us": at_us})


def answer_request(connection: Connection, request: WorkspaceRequest) -> None:
    """Write what a request was answered, where its thread is there still."""
    of_id = (_REQUESTS.tenant == request.tenant) & (_REQUESTS.request_id == request.id)
    connection.execute(update(workspace_requests).where(of_id).values(answer=request.answer))
