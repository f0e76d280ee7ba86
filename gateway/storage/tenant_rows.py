"""What is stored of a tenant, counted by table."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Table, func, literal, select, union_all

from gateway.storage.database import Database
from gateway.storage.tables import metadata, runs, threads


async def rows_of(database: Database, tenant: str) -> Mapping[str, int]:
    """Return the number of a tenant's rows in each table that belongs to tenants."""
    counts = []
    for table in metadata.sorted_tables:
        belongs = belongs_to_tenant(table, tenant)
        if belongs is not None:
            counts.append(select(literal(table.name).label("name"), func.count().label("rows")).where(belongs))
    found = await database.rows(select(union_all(*counts).subquery()))
    return {row.name: row.rows for row in found}


def belongs_to_tenant(table: Table, tenant: str) -> ColumnElement[bool] | None:
    """Return the condition for a tenant's rows of a table; None for a table that belongs to no tenant."""
    if "tenant" in table.c:
        return table.c["tenant"] == tenant
    for column, owners in (("thread_id", threads), ("run_id", runs)):
        if column in table.c:
            return table.c[column].in_(select(owners.c.id).where(owners.c.tenant == tenant))
    return None
