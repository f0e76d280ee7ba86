"""Statements that are compiled once, looked up and executed on both databases, and a locked SQLite file meanwhile."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, func, insert, select, update

from gateway.errors import Unavailable
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.prepared import Prepared
from gateway.storage.store import Store
from gateway.storage.tables import threads, tool_calls

_ADD = Prepared(insert(threads))
_NAMED = Prepared(
    select(threads.c.id, threads.c.created_us).where(threads.c.tenant == "t", threads.c.name == bindparam("asked"))
)
_MOVE = Prepared(update(threads).where(threads.c.id == bindparam("of")).values(created_us=bindparam("to_us")))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


def _row(name: str) -> dict[str, Any]:
    return {"id": f"id of {name}", "tenant": "t", "name": name, "created_us": 1}


async def _add(database: Database, *names: str) -> None:
    def work(connection: Connection) -> None:
        _ADD.execute_all(connection, [_row(name) for name in names])

    await database.transact(work)


async def test_rows_that_were_written_are_found_at_once(database: Database) -> None:
    await _add(database, "a")
    await _add(database, "b", "c")
    assert [await database.look(_NAMED, {"asked": name}) for name in "abcd"] == [
        *([(f"id of {name}", 1)] for name in "abc"),
        [],
    ]


async def test_the_count_of_changed_rows_and_constants_of_the_statement_are_true(database: Database) -> None:
    await _add(database, "a")

    def work(connection: Connection) -> tuple[int, int]:
        return tuple(_MOVE.execute(connection, {"of": of, "to_us": 7}).rowcount for of in ("id of a", "nobody's"))  # type: ignore[return-value]

    assert await database.transact(work) == (1, 0)
    assert (await database.look(_NAMED, {"asked": "a"}))[0].created_us == 7


async def test_nul_is_replaced_and_a_refusal_is_the_usual_error(database: Database) -> None:
    await _add(database, "a\0b")
    assert len(await database.look(_NAMED, {"asked": "a\0b"})) == 1
    assert len(await database.look(_NAMED, {"asked": "a\ufffdb"})) == 1
    with pytest.raises(ConstraintViolated):
        await _add(database, "a\0b")


async def test_a_list_of_parameters_is_refused(database: Database) -> None:
    listed = Prepared(select(threads.c.id).where(threads.c.name.in_(bindparam("names", expanding=True))))
    with pytest.raises(TypeError, match="lists"):
        await database.transact(lambda connection: listed.execute(connection, {"names": ["a"]}))


async def test_a_look_does_not_wait_for_a_writer_and_ends_with_the_database(tmp_path: Path) -> None:
    path = tmp_path / "airlock.db"
    database = await Database.open(f"sqlite:///{path}")
    await _add(database, "a")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert len(await asyncio.wait_for(database.look(_NAMED, {"asked": "a"}), 5)) == 1
        other.execute("ROLLBACK")
    await database.close()
    with pytest.raises(Unavailable):
        await database.look(_NAMED, {"asked": "a"})


async def test_what_a_full_disk_let_pass_is_there(tmp_path: Path) -> None:
    """SQLite may roll back the whole transaction when a statement finds no room: none of it may be executed again."""
    database = await Database.open(f"sqlite:///{tmp_path / 'full.db'}")
    store, before = Store(database), resource.getrlimit(resource.RLIMIT_FSIZE)
    thread = await store.thread("acme", "th")
    row = {"tenant": "acme", "thread_id": thread.id, "name": "execute", "arguments": "x" * 200_000}
    row |= {"arguments_digest": "0" * 64, "policy_version": "p", "state": "finished"}
    written = (
        store.write_tool_call({**row, "id": f"call_{number}"}, audited=[AuditEntry("acme", "tool_call")])
        for number in range(60)
    )
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, before[1]))
        done = await asyncio.gather(*written, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert any(isinstance(one, Unavailable) for one in done)
    assert await database.scalar(select(func.count()).select_from(tool_calls)) == sum(one is None for one in done)
    await database.close()
