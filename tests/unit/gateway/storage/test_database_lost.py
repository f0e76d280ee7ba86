"""A PostgreSQL server that goes away under an open database, and what callers that wait for a write then read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, func, insert, select, text

from gateway.errors import Unavailable
from gateway.storage.database import Database
from gateway.storage.tables import threads
from tests.postgres import PostgresServer


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(postgres_url)
    yield opened
    await opened.close()


def _row(name: str) -> dict[str, object]:
    return {"id": name, "tenant": "t", "name": name, "created_us": 1}


async def _names(database: Database) -> list[str]:
    return [row.name for row in await database.rows(select(threads.c.name).order_by(threads.c.name))]


def _end_session(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone():
            pass


async def test_reads_and_writes_come_back_with_the_server(postgres_server: PostgresServer, database: Database) -> None:
    await database.write((insert(threads), _row("before")))
    assert await _names(database) == ["before"]
    postgres_server.stop()
    try:
        with pytest.raises(Unavailable):
            await _names(database)
        answers = await asyncio.gather(
            *(database.write((insert(threads), _row(f"while {n}"))) for n in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [Unavailable] * 3
    finally:
        postgres_server.start()
    await database.write((insert(threads), _row("after")))
    assert await _names(database) == ["after", "before"]


async def test_a_restart_between_two_calls_goes_unnoticed(postgres_server: PostgresServer, database: Database) -> None:
    await asyncio.gather(*(_names(database) for _ in range(8)))
    postgres_server.stop()
    postgres_server.start()
    assert await asyncio.gather(*(_names(database) for _ in range(8))) == [[]] * 8
    await database.write((insert(threads), _row("a")))
    assert await _names(database) == ["a"]


async def test_a_transaction_that_lost_its_connection_before_the_commit_is_made_again_once(
    postgres_url: str, database: Database
) -> None:
    lost = threading.Event()

    def work(connection: Connection) -> int:
        connection.execute(insert(threads), _row("a"))
        if not lost.is_set():
            lost.set()
            _end_session(postgres_url, connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        return int(connection.execute(select(func.count()).select_from(threads)).scalar_one())

    assert await database.transact(work) == 1
    assert await _names(database) == ["a"]


async def test_a_write_whose_commit_was_lost_is_not_done_again_and_says_so(
    postgres_url: str, database: Database
) -> None:
    commits: list[int] = []

    def lose(connection: Any) -> None:
        commits.append(1)
        if len(commits) == 1:
            _end_session(postgres_url, connection.connection.driver_connection.info.backend_pid)

    event.listen(database._engine, "commit", lose)
    with pytest.raises(Unavailable, match="it is unknown whether the change was made"):
        await database.write((insert(threads), _row("a")))
    assert len(commits) == 1
    await database.write((insert(threads), _row("b")))
    assert await _names(database) == ["b"]


async def test_a_gateway_that_stands_still_in_a_transaction_holds_the_others_up_for_seconds_only(
    postgres_url: str, database: Database
) -> None:
    with psycopg.connect(postgres_url + "&options=-c%20idle_in_transaction_session_timeout%3D200ms") as frozen:
        frozen.execute("SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(b"AIRLOCK"),))
        await database.write((insert(threads), _row("a")))
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            frozen.execute("SELECT 1")


async def test_an_error_quotes_nothing_of_the_row_that_was_refused(database: Database) -> None:
    await database.write((insert(threads), _row("what a tenant wrote")))
    with pytest.raises(Exception, match="unique") as refused:
        await database.write((insert(threads), _row("what a tenant wrote")))
    assert "what a tenant wrote" not in f"{refused.value} {refused.value.__cause__} {refused.value!r}"
