"""A row of each table for a tenant, by a walk over the tables: a new one is filled without anybody's thinking of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Integer, Table, insert, select

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import metadata

# The audit is a chain, and filled as one.
AUDIT = ("audit_records", "audit_heads")
OF_NO_TENANT = ("settings", "gateways", "policies", "snapshot_locks")
_ENDED = {"status": "completed", "state": "finished"}


async def fill(database: Database, tenant: str, **values: object) -> None:
    """Insert a row that is the tenant's into every table, with these values of columns where a table has them."""
    filled = [table for table in metadata.sorted_tables if table.name not in AUDIT]
    given = [(table, {column.name: _value(table, column, tenant) for column in table.columns}) for table in filled]
    await database.write(
        *((insert(table), row | {name: values[name] for name in row.keys() & values.keys()}) for table, row in given)
    )
    await AuditStore(database).write(AuditEntry(tenant, "run_started", thread=f"thread of {tenant}"))


def _value(table: Table, column: Column[Any], tenant: str) -> object:
    if column.name == "tenant":
        return tenant
    if column.name == "deletion":
        return None  # nothing begins in a thread that is being deleted
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, BigInteger | Integer):
        return sum(tenant.encode()) if column.primary_key and column.name == "id" else 1
    if column.name in _ENDED:
        return _ENDED[column.name]
    # What points to another table's row has the same text as that.
    said = f"{tenant} {column.name.removesuffix('_id') if column.foreign_keys else _key(table, column)}"
    return said[: getattr(column.type, "length", None)]


def _key(table: Table, column: Column[Any]) -> str:
    if column.primary_key or column.name in {"thread_id", "run_id"}:
        name = {"thread_id": "thread", "run_id": "run"}.get(column.name)
        return name or ({"threads": "thread", "runs": "run", "approvals": "approval"}.get(table.name) or column.name)
    return column.name


async def rows(database: Database) -> Mapping[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables."""
    return {
        table.name: [tuple(row) for row in await database.rows(select(table).order_by(*table.primary_key.columns))]
        for table in metadata.sorted_tables
    }
