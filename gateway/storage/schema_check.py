"""Whether a database has the schema that this program works with, whatever its revision."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from gateway.storage.tables import metadata

_COUNTED = ("approvals", "events", "messages", "runs", "thread_metadata", "tool_calls")
_BOTH = frozenset(
    [
        "audit_heads_held",
        "threads_counted",
        *(f"{table}_{what}" for table in _COUNTED for what in ("counted", "uncounted")),
        *(f"{table}_recounted" for table in ("approvals", "tool_calls")),
        *(f"{table}_refused" for table in ("runs", "tool_calls")),
    ]
)
_SQLITE = {
    *("audit_heads_back", "audit_heads_replaced", "audit_records_changed", "audit_records_held"),
    *("audit_records_replaced", "threads_uncounted"),
}
_POSTGRESQL = {"audit_heads_guard", "audit_heads_truncated", "audit_records_guard", "audit_records_truncated"}
TRIGGERS = {"sqlite": _BOTH | _SQLITE, "postgresql": _BOTH | _POSTGRESQL}
"""The triggers that the migrations create. A test compares them with those of a new database."""

_FOUND = {
    "sqlite": """
        SELECT type || ' ' || name FROM sqlite_master
        UNION ALL
        SELECT 'column ' || m.name || '.' || p.name
        FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table'
    """,
    "postgresql": """
        SELECT CASE relkind WHEN 'i' THEN 'index ' ELSE 'table ' END || relname
        FROM pg_class WHERE relkind IN ('r', 'p', 'i') AND relnamespace = current_schema()::regnamespace
        UNION ALL
        SELECT 'column ' || c.relname || '.' || a.attname
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
            AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT 'trigger ' || t.tgname
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace
    """,
}


def found_in(connection: Connection) -> frozenset[str]:
    """Return a database's schema, as `table T`, `column T.C`, `index I` and `trigger T`."""
    return frozenset(str(one) for (one,) in connection.exec_driver_sql(_FOUND[connection.dialect.name]))


def missing_in(connection: Connection) -> list[str]:
    """Return what a database of the newest revision lacks, named as in found_in(). Additional objects are fine."""
    found = found_in(connection)
    return [one for one in _expected(connection.dialect.name) if one not in found]


def _expected(dialect: str) -> Iterator[str]:
    for table in metadata.sorted_tables:
        yield f"table {table.name}"
        yield from (f"column {table.name}.{column.name}" for column in table.columns)
        yield from sorted(f"index {index.name}" for index in table.indexes)
    yield from (f"trigger {name}" for name in sorted(TRIGGERS[dialect]))
