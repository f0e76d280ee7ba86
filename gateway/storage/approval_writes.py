"""What every change of an approval has in common: the statuses, and a time after every change so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select, update

from gateway.storage.tables import approvals
from gateway.support.clock import NowUs

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"


def change_approvals(connection: Connection, which: Any, changes: Mapping[str, Any], clock: NowUs) -> int:
    """Change approvals, and return how many; whoever watches is told of them by the time of the change."""
    changed = {**changes, "changed_us": next_change_us(connection, clock)}
    return connection.execute(update(approvals).where(which).values(**changed)).rowcount


def next_change_us(connection: Connection, clock: NowUs) -> int:
    """Return a time after every change so far, whatever the clocks of several gateways say."""
    last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
    return max(clock(), last + 1)


def came_before(table: Table, created_us: int, id_: str) -> ColumnElement[bool]:
    """Return the condition of rows that come after that one, the newest first."""
    columns = table.c
    return or_(columns.created_us < created_us, and_(columns.created_us == created_us, columns.id < id_))
