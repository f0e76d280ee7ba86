"""Approvals that nobody answered in time: marked as expired, and told in the audit, once."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from gateway.storage.approval_writes import EXPIRED, PENDING, change_approvals
from gateway.storage.audit_store import AuditEntry
from gateway.storage.tables import approvals, threads
from gateway.support.clock import NowUs


def late(tenant: str | None, now_us: int) -> ColumnElement[bool]:
    """Return the condition of a tenant's approvals, or with None of all, that wait and are not waited for any more."""
    over = (approvals.c.status == PENDING) & (approvals.c.expires_us <= now_us)
    return over if tenant is None else over & (approvals.c.tenant == tenant)


def mark_expired(connection: Connection, which: ColumnElement[bool], clock: NowUs) -> list[AuditEntry]:
    """Mark approvals, and return the audit's entries: of when their time was over, whenever that is noticed."""
    query = (
        select(approvals, threads.c.name.label("thread"))
        .join(threads, approvals.c.thread_id == threads.c.id)
        .where(which)
        .order_by(approvals.c.expires_us)
        .with_for_update(of=approvals)  # another gateway may notice at the same time: each is told once
    )
    found = connection.execute(query).all()
    if found:
        change_approvals(connection, approvals.c.id.in_([row.id for row in found]), {"status": EXPIRED}, clock)
    return [
        AuditEntry(
            row.tenant,
            "approval_resolved",
            thread=row.thread,
            run_id=row.run_id or "",
            call_id=row.call_id,
            tool=row.tool,
            arguments_digest=row.digest,
            verdict="deny",
            rule=row.rule,
            policy_version=row.policy_version,
            outcome=EXPIRED,
            details={"approval_id": row.id},
            at_us=row.expires_us,
        )
        for row in found
    ]
