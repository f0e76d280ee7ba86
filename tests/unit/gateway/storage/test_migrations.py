"""The revisions, up and down on both databases, and over what a database of the time before held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger, Boolean, Connection, Engine, Integer, MetaData, inspect, text

from gateway.errors import Misconfigured
from gateway.storage import migration
from gateway.storage.connecting import connect
from gateway.storage.database import Database
from gateway.storage.migration import NEWEST, downgrade, revision_of, upgrade
from gateway.storage.tables import metadata

# What was renamed since, by the name of the time before.
_RENAMED = {("runs", "suspended"): "checkpoint"}


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
    return {"status": "running", "state": "executing", "scopes": "run,tool"}.get(column.name, "x")


def test_the_newest_revision_is_the_last_script() -> None:
    scripts = Path(migration.__file__).parent / "migrations"
    assert ScriptDirectory(str(scripts)).get_current_head() == NEWEST


def test_up_down_and_up_again_ends_with_exactly_the_tables_of_the_code(engine: Engine) -> None:
    for _ in range(2):
        upgrade(engine)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        downgrade(engine, "base")
        with engine.connect() as connection:
            assert _tables(connection) == set()
            if connection.dialect.name == "postgresql":
                left = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
                assert connection.execute(text(left)).all() == []


@pytest.mark.parametrize("before", ["0001", "0002", "0003"])
def test_an_upgrade_keeps_every_row_of_the_time_before(engine: Engine, before: str) -> None:
    upgrade(engine, before)
    then, held = MetaData(), dict[str, dict[str, object]]()
    with engine.begin() as connection:
        then.reflect(connection)
        for table in then.sorted_tables:
            if table.name != "alembic_version":
                held[table.name] = {column.name: _value(column) for column in table.columns}
                connection.execute(table.insert(), held[table.name])
    upgrade(engine)
    with engine.connect() as connection:
        for name, row in held.items():
            found = connection.execute(metadata.tables[name].select()).mappings().one()
            assert {column: found[_RENAMED.get((name, column), column)] for column in row} == row
    downgrade(engine, before)
    with engine.connect() as connection:
        for name, row in held.items():
            assert dict(connection.execute(then.tables[name].select()).mappings().one()) == row


def test_a_call_that_did_not_execute_is_over_after_the_upgrade_and_one_under_way_is_not(engine: Engine) -> None:
    upgrade(engine, "0003")
    then = MetaData()
    with engine.begin() as connection:
        then.reflect(connection)
        threads, calls = then.tables["threads"], then.tables["tool_calls"]
        connection.execute(threads.insert(), {column.name: _value(column) for column in threads.columns})
        row = {column.name: _value(column) for column in calls.columns} | {"started_us": 5, "finished_us": None}
        for state in ("blocked", "waiting", "executing"):
            connection.execute(calls.insert(), row | {"id": state, "state": state})
    upgrade(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT id, finished_us FROM tool_calls")).all()
    assert dict(tuple(row) for row in found) == {"blocked": 5, "waiting": 5, "executing": None}


async def test_gateways_that_start_at_once_on_an_empty_database_migrate_it_once(empty_url: str) -> None:
    opened = await asyncio.gather(*(Database.open(empty_url) for _ in range(4)))
    for database in opened:
        await database.close()
    assert (found := revision_of(empty_url)).current == found.newest


def test_looking_at_the_revision_changes_nothing(engine: Engine, empty_url: str) -> None:
    assert revision_of(empty_url).current is None
    with engine.connect() as connection:
        assert _tables(connection) == set()
    upgrade(engine, "0002")
    assert revision_of(empty_url).current == "0002"


async def test_a_database_of_a_newer_program_is_refused_and_left_alone(engine: Engine, empty_url: str) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Misconfigured, match="9999"):
        await Database.open(empty_url)
    assert revision_of(empty_url).current == "9999"


def test_a_missing_server_is_reported_as_that(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="the database postgresql"):
        revision_of(f"postgresql://postgres:secret@/x?host={tmp_path}")


def test_snapshots_of_threads_whose_messages_were_removed_count_none_after_the_upgrade(engine: Engine) -> None:
    upgrade(engine, "0005")
    then = MetaData()
    with engine.begin() as connection:
        then.reflect(connection)
        tables = then.tables
        rows = {name: {column.name: _value(column) for column in table.columns} for name, table in tables.items()}
        for name in ("kept", "pruned", "empty"):
            connection.execute(
                tables["threads"].insert(), rows["threads"] | {"id": name, "name": name, "deletion": None}
            )
            shot = {"id": name, "thread_id": name, "created_us": 10, "messages": 2, "request_id": None}
            connection.execute(tables["snapshots"].insert(), rows["snapshots"] | shot)
        for name, started_us in (("kept", 5), ("pruned", 15)):
            run = {"id": name, "thread_id": name, "started_us": started_us, "request_id": None}
            connection.execute(tables["runs"].insert(), rows["runs"] | run)
            said = {"thread_id": name, "position": 0, "run_id": name}
            connection.execute(tables["messages"].insert(), rows["messages"] | said)
    upgrade(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT id, messages FROM snapshots")).all()
    assert dict(tuple(row) for row in found) == {"kept": 2, "pruned": 0, "empty": 0}
