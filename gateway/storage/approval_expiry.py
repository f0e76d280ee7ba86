"""Expired approvals: marked, and recorded in the audit, once."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from gateway.storage.approval_writes import EXPIRED, PENDING, change_approvals, resolved_entry
from gateway.storage.audit_store import AuditEntry
from gateway.storage.tables import approvals, threads
from gateway.support.clock import NowUs


def late(tenant: str | None, now_us: int) -> ColumnElement[bool]:
    """Return the condition for pending approvals past their expiry, of one tenant or, with None, of all."""
    over = (approvals.c.status == PENDING) & (approvals.c.expires_us <= now_us)
    return over if tenant is None else over & (approvals.c.tenant == tenant)


def mark_expired(connection: Connection, which: ColumnElement[bool], clock: NowUs) -> list[AuditEntry]:
    """Mark approvals as expired; return their audit entries, dated at the expiry."""
    query = (
        select(approvals, threads.c.name.label("thread"))
        .join(threads, approvals.c.thread_id == threads.c.id)
        .where(which)
        .order_by(approvals.c.expires_us)
        .with_for_update(of=approvals)  # another gateway may notice at the same time: each is recorded once
    )
    found = connection.execute(query).all()
    if found:
        change_approvals(connection, approvals.c.id.in_([row.id for row in found]), {"status": EXPIRED}, clock)
    return [resolved_entry(row, "deny", EXPIRED, at_us=row.expires_us) for row in found]
