"""Changes of approvals: the statuses, a time after all changes so far, and the audit entries."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, func, select, update

from gateway.storage.audit_store import AuditEntry, shared
from gateway.storage.queries import with_thread
from gateway.storage.tables import approvals
from gateway.support.clock import NowUs

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"


def change_approvals(
    connection: Connection, which: ColumnElement[bool], changes: Mapping[str, Any], clock: NowUs
) -> int:
    """Change approvals and return how many; watchers find them by the time of the change."""
    changed = {**changes, "changed_us": next_change_us(connection, clock)}
    return connection.execute(update(approvals).where(which).values(**changed)).rowcount


def resolved_entry(
    approval: Any,
    verdict: str,
    outcome: str,
    *,
    by: str = "gateway",
    at_us: int | None = None,
    details: Mapping[str, JsonValue] = MappingProxyType({}),
) -> AuditEntry:
    """Return the audit entry of an approval, or its row, that was answered or has expired."""
    return AuditEntry(
        approval.tenant,
        "approval_resolved",
        by,
        **shared(approval, "thread", "run_id", "call_id", "tool", "rule", "policy_version"),
        arguments_digest=approval.digest,
        verdict=verdict,
        outcome=outcome,
        details={"approval_id": approval.id, **details},
        at_us=at_us,
    )


def next_change_us(connection: Connection, clock: NowUs) -> int:
    """Return a time after every change so far, whatever the clocks of the gateways say."""
    last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
    return max(clock(), last + 1)


def late(tenant: str | None, now_us: int) -> ColumnElement[bool]:
    """Return the condition for pending approvals past their expiry, of one tenant or, with None, of all."""
    over = (approvals.c.status == PENDING) & (approvals.c.expires_us <= now_us)
    return over if tenant is None else over & (approvals.c.tenant == tenant)


def mark_expired(connection: Connection, which: ColumnElement[bool], clock: NowUs) -> list[AuditEntry]:
    """Mark approvals as expired; return their audit entries, dated at the expiry."""
    query = (
        with_thread(approvals)
        .where(which)
        .order_by(approvals.c.expires_us)
        .with_for_update(of=approvals)  # another gateway may notice at the same time: each is recorded once
    )
    found = connection.execute(query).all()
    if found:
        change_approvals(connection, approvals.c.id.in_([row.id for row in found]), {"status": EXPIRED}, clock)
    return [resolved_entry(row, "deny", EXPIRED, at_us=row.expires_us) for row in found]
