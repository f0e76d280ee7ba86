"""What every change of an approval needs: the statuses, and a time after all changes so far."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, func, select, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.tables import approvals
from gateway.support.clock import NowUs

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"


def change_approvals(connection: Connection, which: Any, changes: Mapping[str, Any], clock: NowUs) -> int:
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
        thread=approval.thread,
        run_id=approval.run_id or "",
        call_id=approval.call_id,
        tool=approval.tool,
        arguments_digest=approval.digest,
        verdict=verdict,
        rule=approval.rule,
        policy_version=approval.policy_version,
        outcome=outcome,
        details={"approval_id": approval.id, **details},
        at_us=at_us,
    )


def next_change_us(connection: Connection, clock: NowUs) -> int:
    """Return a time after every change so far, whatever the clocks of the gateways say."""
    last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
    return max(clock(), last + 1)
