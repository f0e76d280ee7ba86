"""The revisions, up and down on both databases, and what an upgrade does with the rows of the release before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger, Boolean, Connection, Engine, Integer, Table, inspect, select, text

from gateway.errors import Misconfigured
from gateway.storage import migration
from gateway.storage.connecting import connect
from gateway.storage.database import Database
from gateway.storage.migration import NEWEST, NotMigrated, downgrade, revision_of, upgrade
from gateway.storage.tables import metadata
from tests.unit.gateway.later_release import LATER, become_later_release


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    made = connect(empty_url)
    yield made
    made.dispose()


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


def _value(column: Any) -> object:
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, BigInteger | Integer):
        return 1
    return {"status": "running", "state": "asked", "deletion": None}.get(column.name, "x")


def _fill(engine: Engine) -> None:
    """Add a row to each table."""
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            if table.name != "storage_use":  # triggers write it
                connection.execute(table.insert(), {column.name: _value(column) for column in table.columns})


def _rows(engine: Engine, table: Table) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def test_the_newest_revision_is_the_last_script() -> None:
    scripts = Path(migration.__file__).parent / "migrations"
    assert ScriptDirectory(str(scripts)).get_current_head() == NEWEST


def test_a_new_database_has_exactly_the_tables_of_the_code(engine: Engine) -> None:
    for _ in range(2):
        upgrade(engine)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_an_upgrade_and_a_downgrade_keep_every_row(
    engine: Engine, empty_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    upgrade(engine)
    _fill(engine)
    before = {table.name: _rows(engine, table) for table in metadata.sorted_tables}
    become_later_release(monkeypatch, tmp_path)
    upgrade(engine)
    assert revision_of(empty_url).current == LATER
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name, later FROM threads")).all() == [("x", "x")]
    for _ in range(2):
        assert {table.name: _rows(engine, table) for table in metadata.sorted_tables} == before
        downgrade(engine, NEWEST)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


async def test_gateways_that_start_at_once_on_an_empty_database_migrate_it_once(empty_url: str) -> None:
    opened = await asyncio.gather(*(Database.open(empty_url) for _ in range(4)))
    for database in opened:
        await database.close()
    assert (found := revision_of(empty_url)).current == found.newest


def test_looking_at_the_revision_changes_nothing(engine: Engine, empty_url: str) -> None:
    assert revision_of(empty_url).current is None
    with engine.connect() as connection:
        assert _tables(connection) == set()


@pytest.mark.parametrize(
    "revision, says", [("9999", "upgraded by a newer.*Run the newer"), ("0006", "created by an unreleased")]
)
async def test_a_database_of_another_program_is_refused_and_left_alone(
    engine: Engine, empty_url: str, revision: str, says: str
) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    with pytest.raises(Misconfigured, match=f"revision {revision} and was {says}.*"):
        await Database.open(empty_url)
    assert revision_of(empty_url).current == revision


def test_a_downgrade_to_before_the_first_release_is_refused(engine: Engine, empty_url: str) -> None:
    upgrade(engine)
    with pytest.raises(NotMigrated, match="the first release"):
        downgrade(engine, "base")
    assert revision_of(empty_url).current == NEWEST


def test_a_missing_server_is_reported_as_that(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="the database postgresql"):
        revision_of(f"postgresql://postgres:secret@/x?host={tmp_path}")
