"""What is stored of a tenant, counted by table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, func, literal, select, union_all

from gateway.storage.database import Database
from gateway.storage.tables import metadata, runs, threads


async def rows_of(database: Database, tenant: str) -> Mapping[str, int]:
    """Return how many rows each table holds that belong to a tenant; tables that belong to none are not in it."""
    counts = []
    for table in metadata.sorted_tables:
        belongs = belongs_to_tenant(table, tenant)
        if belongs is not None:
            counts.append(select(literal(table.name).label("name"), func.count().label("rows")).where(belongs))
    found = await database.rows(select(union_all(*counts).subquery()))
    return {row.name: row.rows for row in found}


def belongs_to_tenant(table: Table, tenant: str) -> ColumnElement[bool] | None:
    """Return the condition for a table's rows that are a tenant's; None for a table that belongs to no tenant."""
    columns: Any = table.c
    if "tenant" in columns:
        return columns.tenant == tenant  # type: ignore[no-any-return]
    if "thread_id" in columns:
        return columns.thread_id.in_(select(threads.c.id).where(threads.c.tenant == tenant))  # type: ignore[no-any-return]
    if "run_id" in columns:
        return columns.run_id.in_(select(runs.c.id).where(runs.c.tenant == tenant))  # type: ignore[no-any-return]
    return None
