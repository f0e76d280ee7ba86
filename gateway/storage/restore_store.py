"""The queries of restores: which thread is being restored, and which requests were answered.

A thread whose files are being replaced has a mark in threads.deletion, so nothing begins in it. The mark of a gateway
that died stays: the workspace is unknown until it is restored again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from gateway.errors import RequestIdReused
from gateway.storage.audit_store import AuditEntry
from gateway.storage.erasure_store import refuse_under_way
from gateway.storage.queries import Queries, transaction
from gateway.storage.request_store import REMEMBERED_US
from gateway.storage.tables import threads, workspace_requests
from gateway.storage.thread_marks import RESTORING, lock_thread

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
        self, connection: Connection, thread_id: str, mark: str, request: WorkspaceRequest | None = None
    ) -> str | None:
        """Close a thread; return an earlier restore's mark. ThreadGoing, RunUnderWay, CallUnderWay change nothing."""
        earlier = lock_thread(connection, thread_id)
        refuse_under_way(connection, thread_id)
        connection.execute(update(threads).where(threads.c.id == thread_id).values(deletion=mark))
        if request is not None:
            claim_request(connection, request, thread_id, self.clock())
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
        if request is not None:
            answer_request(connection, request)
        self.audit.append(connection, entry)


def claim_request(connection: Connection, request: WorkspaceRequest, thread_id: str, at_us: int) -> None:
    """Write that a request begins, replacing only its own earlier attempt; delete requests older than a day."""
    of_tenant = _REQUESTS.tenant == request.tenant
    again = (_REQUESTS.request_id == request.id) & _REQUESTS.answer.is_(None)
    forgotten = of_tenant & (again | (_REQUESTS.at_us < at_us - REMEMBERED_US))
    connection.execute(delete(workspace_requests).where(forgotten))
    row = {"tenant": request.tenant, "request_id": request.id, "request_digest": request.digest}
    connection.execute(insert(workspace_requests), {**row, "thread_id": thread_id, "answer": None, "at_us": at_us})


def answer_request(connection: Connection, request: WorkspaceRequest) -> None:
    """Write a request's answer, if its thread still exists."""
    of_id = (_REQUESTS.tenant == request.tenant) & (_REQUESTS.request_id == request.id)
    connection.execute(update(workspace_requests).where(of_id).values(answer=request.answer))
