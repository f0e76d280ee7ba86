"""The queries of grants: rules that approvers granted to a thread or a run, until they are revoked."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, exists, or_, select, update

from gateway.credentials.caller import actor
from gateway.storage.approval_writes import APPROVED, CANCELLED, change_approvals
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from gateway.storage.queries import Queries, matching, page_of, transaction, with_thread
from gateway.storage.tables import RUNS_UNDER_WAY, approvals, grants, runs, threads
from gateway.support.paging import Place

_GRANTED_TO_ALL = grants.c.run_id.is_(None)
_RUN_GOES_ON = exists().where(runs.c.id == grants.c.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
_IN_FORCE = grants.c.revoked_us.is_(None) & or_(_GRANTED_TO_ALL, _RUN_GOES_ON)
_GRANTS = with_thread(
    grants,
    *(grants.c[name] for name in ("id", "tenant", "run_id", "rule", "approval_id", "created_us", "revoked_us")),
    approvals.c.resolved_by.label("granted_by"),
    _IN_FORCE.label("in_force"),
).join(approvals, grants.c.approval_id == approvals.c.id)


@dataclass(frozen=True)
class NewGrant:
    """A rule, as YAML, that allows calls of the thread or, with `run_id`, of that run."""

    id: str
    rule: str
    run_id: str | None


@dataclass(frozen=True)
class Grant:
    """A stored grant; `thread` is the thread's name. It is `in_force` until it is revoked, or its run is over."""

    id: str
    tenant: str
    thread: str
    run_id: str | None
    rule: str
    approval_id: str
    granted_by: str | None
    created_us: int
    revoked_us: int | None
    in_force: bool


class GrantStore(Queries):
    """Typed access to grants; they are written with the answer (approval_store.py)."""

    async def rules(self, thread: Thread, run_id: str | None) -> Sequence[tuple[str, str]]:
        """Return the rules (YAML) granted to a thread or this run of it, each with the id of its approval."""
        mine = or_(_GRANTED_TO_ALL, grants.c.run_id == (run_id or ""))
        query = select(grants.c.rule, grants.c.approval_id).where(
            grants.c.thread_id == thread.id, grants.c.revoked_us.is_(None), mine
        )
        return [(row.rule, row.approval_id) for row in await self._database.rows(query.order_by(grants.c.created_us))]

    async def get(self, tenant: str, grant_id: str) -> Grant | None:
        return await self._one(Grant, _GRANTS.where(grants.c.id == grant_id, grants.c.tenant == tenant))

    async def page(
        self, tenant: str, *, thread: str | None, include_ended: bool, before: Place | None, limit: int
    ) -> Sequence[Grant]:
        query = _GRANTS.where(grants.c.tenant == tenant, *matching({threads.c.name: thread}))
        if not include_ended:
            query = query.where(_IN_FORCE)
        return await self._all(Grant, page_of(query, grants, before, limit))

    @transaction
    def revoke(self, connection: Connection, tenant: str, grant_id: str) -> bool:
        """Revoke a grant, and its approval unless the approved call has run; return whether it was in force."""
        not_revoked = (grants.c.id == grant_id) & (grants.c.tenant == tenant) & grants.c.revoked_us.is_(None)
        revoked = update(grants).where(not_revoked).values(revoked_us=self.clock())
        approval_id = select(grants.c.approval_id).where(grants.c.id == grant_id).scalar_subquery()
        unused = (approvals.c.id == approval_id) & (approvals.c.status == APPROVED)
        by = actor()
        if not connection.execute(revoked).rowcount:
            return False
        change_approvals(connection, unused, {"status": CANCELLED}, self.clock)
        row = connection.execute(_GRANTS.where(grants.c.id == grant_id)).one()
        details = {"grant_id": row.id, "approval_id": row.approval_id}
        whose = {"thread": row.thread, "run_id": row.run_id or ""}
        self.audit.append(connection, AuditEntry(tenant, "grant_revoked", by, **whose, details=details))
        return True
