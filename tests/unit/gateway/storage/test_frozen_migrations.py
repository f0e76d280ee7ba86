"""A released migration, and the schema of a released revision, are never edited: databases that have them would differ.

schemas/ has the statements that created each revision's schema in a new database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_mock_engine

from gateway.storage import migration
from gateway.storage.connecting import connect
from gateway.storage.migration import NEWEST, TRIGGERS, create_schema, found_in, upgrade
from gateway.storage.tables import metadata

# To add a migration, add its line here. To change the schema again, write another migration; never update a line.
LANDED = {
    "0007_first_release.py": "8db72bcb86d1b65767540c7bb7526aa1f4f5f48697fdae9807c916775ba027a2",
    "0008_open_connections.py": "4e6bed4e57587d6978bfbda85f10016297d1a14bcea5505f9407e115898d1e39",
    "0009_usage.py": "f61e73e5cf1d6a698a6eda2f4cc7863d6e5e43e0609e8ca754e1f84592f9bb92",
    "0010_mcp_pins.py": "ee5446cc46e0dfc5c26100709647fd9d852aa76d1e6d2c36374f4d07e017e990",
    "0011_e2b_sandboxes.py": "2f1845839f7b382a26e44e6ddfab6669c3b7212c39b9533c87edfb2c9f554b05",
    "0012_snapshot_locks.py": "956ae6cfe6fe595b2889839df3d7779946dbf76994976b057901090827c8f13f",
}
_SCHEMAS = Path(__file__).parent / "schemas"
_NEXT = "\n-- next\n"


def _statements(dialect: str) -> Iterator[str]:
    """Yield what creates the newest schema."""
    executed: list[Any] = []
    engine = create_mock_engine(f"{dialect}://", lambda statement, *_: executed.append(statement))
    create_schema(engine)  # type: ignore[arg-type] - all that it uses of a connection
    for statement in executed:
        lines = str(statement.compile(dialect=engine.dialect)).strip().splitlines()
        yield "\n".join(line.rstrip() for line in lines)


def test_no_migration_that_landed_is_edited_or_removed() -> None:
    versions = Path(migration.__file__).parent / "migrations" / "versions"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in versions.glob("*.py")}
    changed = sorted(name for name, digest in LANDED.items() if found.get(name) != digest)
    assert not changed, f"{changed} landed and were edited or removed: restore them, and write a new migration"
    new = "\n".join(f'    "{name}": "{digest}",' for name, digest in sorted(found.items()) if name not in LANDED)
    assert not new, f"a new migration: add its line to LANDED\n{new}"


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_schema_changes_with_the_revision_only(dialect: str) -> None:
    path = _SCHEMAS / f"{NEWEST}.{dialect}.sql"
    new = list(_statements(dialect))
    if not path.exists():
        path.write_text(_NEXT.join(new), encoding="utf-8")
        pytest.fail(f"a new revision: {path.name} was written; commit it")
    landed = path.read_text(encoding="utf-8").split(_NEXT)
    assert sorted(landed) == sorted(new), "tables.py or triggers.py changed: write a migration"


@pytest.mark.parametrize("revision", sorted({path.name.split(".")[0] for path in _SCHEMAS.iterdir()}))
def test_a_database_of_any_revision_is_upgraded_to_exactly_the_newest_schema(revision: str, empty_url: str) -> None:
    engine = connect(empty_url)
    try:
        with engine.begin() as connection:
            schema = (_SCHEMAS / f"{revision}.{engine.dialect.name}.sql").read_text(encoding="utf-8")
            version = f"CREATE TABLE alembic_version AS SELECT '{revision}' AS version_num"
            for statement in (*schema.split(_NEXT), version):
                connection.exec_driver_sql(statement)
        upgrade(engine)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            found = {one.removeprefix("trigger ") for one in found_in(connection) if one.startswith("trigger ")}
            assert found == set(TRIGGERS[engine.dialect.name])
            assert found.issuperset(("runs_refused", "audit_heads_held"))
    finally:
        engine.dispose()
