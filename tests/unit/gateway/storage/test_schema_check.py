"""The schema of a database is looked at when it is opened, whatever its revision says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text

from gateway.errors import Misconfigured
from gateway.storage.connecting import connect
from gateway.storage.database import Database
from gateway.storage.migration import NEWEST, TRIGGERS, found_in, missing_from, revision_of, upgrade
from gateway.storage.tables import metadata

# Migration 0005 as it was before it was edited in place, by what the edit added.
_FIRST_0005 = (
    "DROP TABLE workspace_requests",
    "DROP INDEX ix_sandbox_transitions_sandbox",
    "DROP INDEX ix_snapshots_thread_id",
    "ALTER TABLE snapshots DROP COLUMN thread_id",
    "ALTER TABLE snapshots DROP COLUMN kind",
    "ALTER TABLE snapshots DROP COLUMN step",
)


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    made = connect(empty_url)
    yield made
    made.dispose()


def _execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_a_new_database_has_the_triggers_that_are_looked_for(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        found = {one.removeprefix("trigger ") for one in found_in(connection) if one.startswith("trigger ")}
    assert found == TRIGGERS[engine.dialect.name], "a migration adds or drops triggers: say so in TRIGGERS"


async def test_a_database_of_the_first_form_of_0005_is_completed(engine: Engine, empty_url: str) -> None:
    upgrade(engine, "0005")
    _execute(
        engine,
        *_FIRST_0005,
        "INSERT INTO threads (id, tenant, name, created_us) VALUES ('th_1', 'acme', 't', 1)",
        *(
            "INSERT INTO snapshots (id, tenant, thread, created_us, created_by, comment, run_id, messages, files, "
            f"size_bytes, stored_bytes, skipped, stripped) VALUES ('{name}', 'acme', '{thread}', 1, '', '', '', 0, 0, "
            "0, 0, 0, 0)"
            for name, thread in (("s1", "t"), ("s2", "deleted"))
        ),
    )
    await (await Database.open(empty_url)).close()
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        found = connection.execute(text("SELECT id, thread_id, kind, step FROM snapshots ORDER BY id")).all()
    assert [tuple(row) for row in found] == [("s1", "th_1", "asked", 0), ("s2", "", "asked", 0)]


@pytest.mark.parametrize(
    "statement, lacks",
    [
        ("DROP TABLE workspace_requests", "table workspace_requests, column workspace_requests.tenant"),
        ("DROP INDEX ix_snapshots_thread_id", "index ix_snapshots_thread_id"),
        ("ALTER TABLE snapshots DROP COLUMN comment", "column snapshots.comment"),
        ("DROP TRIGGER runs_refused", "trigger runs_refused"),
    ],
)
async def test_a_database_that_lacks_something_is_refused_and_left_alone(
    engine: Engine, empty_url: str, statement: str, lacks: str
) -> None:
    upgrade(engine)
    on_table = statement.startswith("DROP TRIGGER") and engine.dialect.name == "postgresql"
    _execute(engine, statement + (" ON runs" if on_table else ""))
    with pytest.raises(Misconfigured, match=lacks):
        await Database.open(empty_url)
    assert ", ".join(missing_from(empty_url)).startswith(lacks)
    assert revision_of(empty_url).current == NEWEST


async def test_tables_and_indexes_of_others_are_no_fault(engine: Engine, empty_url: str) -> None:
    upgrade(engine)
    _execute(engine, "CREATE TABLE notes (a TEXT)", "CREATE INDEX mine ON runs (status)")
    await (await Database.open(empty_url)).close()


async def test_a_database_of_a_newer_release_is_refused_in_plain_words(engine: Engine, empty_url: str) -> None:
    upgrade(engine)
    _execute(engine, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Misconfigured, match=r"revision 9999 and was upgraded by a newer airlock.*Run the newer"):
        await Database.open(empty_url)
    assert not revision_of(empty_url).known
