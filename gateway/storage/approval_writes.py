"""What every change of an approval needs: the statuses, and a time after all changes so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from gateway.storage.tables import approvals
from gateway.support.clock import NowUs

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"


def change_approvals(connection: Connection, which: Any, changes: Mapping[str, Any], clock: NowUs) -> int:
    """Change approvals and return how many; watchers find them by the time of the change."""
    changed = {**changes, "changed_us": next_change_us(connection, clock)}
    return connection.execute(update(approvals).where(which).values(**changed)).rowcount


def next_change_us(connection: Connection, clock: NowUs) -> int:
    """Return a time after every change so far, whatever the clocks of the gateways say."""
    last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
    return max(clock(), last + 1)
