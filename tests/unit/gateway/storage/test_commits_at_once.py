"""Short writes that come one at a time are committed on the event loop, and by the writer's thread otherwise."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from gateway.storage import writer
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.tables import threads

_NEVER_S = 3600.0


@pytest.fixture
async def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(writer, "_QUICK_S", _NEVER_S)  # how fast this machine is says nothing here
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    yield database
    await database.close()


async def _write(database: Database, name: str, *, short: bool = True) -> bool:
    """Write a row; return whether that was done on the event loop."""

    def work(connection: Connection) -> bool:
        connection.execute(insert(threads), {"id": name, "tenant": "t", "name": name, "created_us": 1})
        return threading.current_thread() is threading.main_thread()

    return await database.transact(work, apart=False, short=short)


async def _alone(database: Database, count: int, *, start: int = 0) -> list[bool]:
    return [await _write(database, f"{start + number}") for number in range(count)]


def _names(tmp_path: Path) -> set[str]:
    """Return what another process reads."""
    with closing(sqlite3.connect(tmp_path / "airlock.db")) as other:
        return {name for (name,) in other.execute("SELECT name FROM threads")}


async def test_writes_that_come_one_at_a_time_are_committed_on_the_event_loop(
    database: Database, tmp_path: Path
) -> None:
    assert not any(await _alone(database, writer._ALONE))

    assert await _write(database, "at once")

    assert "at once" in _names(tmp_path)


async def test_a_commit_on_the_event_loop_waits_for_the_disk(database: Database) -> None:
    await _alone(database, writer._ALONE)

    def asked(connection: Connection) -> tuple[bool, Any]:
        at_once = threading.current_thread() is threading.main_thread()
        return at_once, connection.exec_driver_sql("PRAGMA synchronous").scalar()

    assert await database.transact(asked, apart=False, short=True) == (True, 2)  # FULL


async def test_every_so_many_go_to_the_thread_which_empties_the_log(database: Database) -> None:
    await _alone(database, writer._ALONE)

    went = await _alone(database, writer._AT_ONCE + 2, start=100)

    assert went == [True] * writer._AT_ONCE + [False, True]


async def test_work_that_may_be_long_goes_to_the_thread(database: Database) -> None:
    await _alone(database, writer._ALONE)

    assert not await _write(database, "long", short=False)


async def test_writes_that_meet_share_the_transactions_of_the_thread(database: Database) -> None:
    await _alone(database, writer._ALONE + writer._AT_ONCE)

    together = await asyncio.gather(*(_write(database, f"together {number}") for number in range(4)))
    after = await _write(database, "after")

    assert not any(together)
    assert not after


async def test_after_a_slow_commit_the_thread_does_the_next_ones(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _alone(database, writer._ALONE)
    monkeypatch.setattr(writer, "_QUICK_S", 0.0)

    assert [await _write(database, "slow"), await _write(database, "next")] == [True, False]


async def test_a_write_beside_another_process_waits_in_the_thread(database: Database, tmp_path: Path) -> None:
    await _alone(database, writer._ALONE)
    with closing(sqlite3.connect(tmp_path / "airlock.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(_write(database, "waits"))
        done, _ = await asyncio.wait({writing}, timeout=0.3)
        assert not done
        other.execute("COMMIT")
    assert not await writing


async def test_what_a_constraint_refuses_is_reported_and_undone(database: Database, tmp_path: Path) -> None:
    await _alone(database, writer._ALONE)

    with pytest.raises(ConstraintViolated):
        await _write(database, "0")

    assert await _alone(database, 1, start=50) == [False]
    assert "50" in _names(tmp_path)
