"""The schema of a database is looked at when it is opened, whatever its revision says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from gateway.errors import Misconfigured
from gateway.storage.connecting import connect
from gateway.storage.database import Database
from gateway.storage.migration import NEWEST, revision_of, upgrade


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    made = connect(empty_url)
    yield made
    made.dispose()


def _execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


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
    assert ", ".join(revision_of(empty_url).missing).startswith(lacks)
    assert revision_of(empty_url).current == NEWEST


async def test_tables_and_indexes_of_others_are_no_fault(engine: Engine, empty_url: str) -> None:
    upgrade(engine)
    _execute(engine, "CREATE TABLE notes (a TEXT)", "CREATE INDEX mine ON runs (status)")
    await (await Database.open(empty_url)).close()
