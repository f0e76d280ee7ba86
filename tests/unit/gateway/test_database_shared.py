"""Several processes on one SQLite file: the CLI writes while gateways run, and two gateways may start at once."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, insert, select

from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore
from gateway.storage.tables import policy_changes, threads

_WRITER = """
import asyncio, sys
from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore

async def main():
    database = await Database.open(sys.argv[1])
    store = PolicyStore(database)
    for number in range(20):
        await store.apply(sys.argv[2], f"{sys.argv[2]} {number}", "apply", "process")
    await database.close()

asyncio.run(main())
"""


async def test_processes_that_open_and_write_at_once_wait_for_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _WRITER, url, f"t{n}", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for n in range(3)
    ]
    said = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0] * 3, said
    database = await Database.open(url)
    assert len(await PolicyStore(database).history("t1", 100)) == 20
    rows = await database.rows(select(func.count().label("all")).select_from(policy_changes))
    assert rows[0].all == 60
    await database.close()


async def test_a_write_waits_for_another_process_to_finish_its_own(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    row = {"id": "a", "tenant": "t", "name": "n", "created_us": 1}
    with closing(sqlite3.connect(tmp_path / "airlock.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(database.write((insert(threads), row)))
        done, _ = await asyncio.wait({writing}, timeout=0.3)
        assert not done
        other.execute("COMMIT")
        await writing
    await database.close()


async def test_who_reads_and_then_writes_sees_what_others_wrote_before(tmp_path: Path) -> None:
    """Read, then write: in SQLite's usual transaction the second of two such would be refused, without a wait."""
    url = f"sqlite:///{tmp_path}/airlock.db"
    both = [await Database.open(url), await Database.open(url)]

    def count_up(connection: Connection) -> int:
        number = connection.execute(select(func.count()).select_from(threads)).scalar_one()
        connection.execute(insert(threads), {"id": f"id{number}", "tenant": "t", "name": f"n{number}", "created_us": 1})
        return int(number)

    numbers = await asyncio.gather(*(database.transact(count_up) for _ in range(50) for database in both))
    assert sorted(numbers) == list(range(100))
    for database in both:
        await database.close()
