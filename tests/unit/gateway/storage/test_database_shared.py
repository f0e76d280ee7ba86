"""Several processes on one database: the CLI writes while gateways run, and two gateways may start at once."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, func, insert, select, update

from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore
from gateway.storage.tables import counters, policy_changes, threads

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


async def test_processes_that_open_and_write_at_once_wait_for_each_other(database_url: str) -> None:
    url = database_url
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


async def test_who_reads_and_then_writes_sees_what_others_wrote_before(database_url: str) -> None:
    """Read, then write: in SQLite's usual transaction the second of two such would be refused, without a wait."""
    both = [await Database.open(database_url), await Database.open(database_url)]

    def count_up(connection: Connection) -> int:
        number = connection.execute(select(func.count()).select_from(threads)).scalar_one()
        connection.execute(insert(threads), {"id": f"id{number}", "tenant": "t", "name": f"n{number}", "created_us": 1})
        return int(number)

    numbers = await asyncio.gather(*(database.transact(count_up) for _ in range(50) for database in both))
    assert sorted(numbers) == list(range(100))
    for database in both:
        await database.close()


async def test_gateways_that_see_the_same_edited_file_at_once_make_one_change(database_url: str) -> None:
    both = [await Database.open(database_url), await Database.open(database_url)]
    stores = [PolicyStore(database) for database in both]
    for edit in range(10):
        made = await asyncio.gather(*(store.apply("t", f"text {edit}", "file", "gateway") for store in stores))
        assert made[0].id == made[1].id
    assert len(await stores[0].history("t", 100)) == 10
    for database in both:
        await database.close()


async def test_transactions_that_come_to_the_same_rows_in_other_orders_do_not_stand_in_each_others_way(
    database_url: str,
) -> None:
    both = [await Database.open(database_url), await Database.open(database_url)]
    names = [f"t{n}" for n in range(4)]
    rows = [{"tenant": name, "name": "n", "window_us": 0, "used": 0} for name in names]
    await both[0].write((insert(counters), rows))

    def add(connection: Connection, order: list[str]) -> None:
        for name in order:
            one = counters.c.tenant == name
            used = connection.execute(select(counters.c.used).where(one)).scalar_one()
            connection.execute(update(counters).where(one).values(used=used + 1))

    orders = [names, names[::-1]]
    await asyncio.gather(
        *(
            database.transact(partial(add, order=order))
            for _ in range(50)
            for database, order in zip(both, orders, strict=True)
        )
    )
    found = await both[1].rows(select(counters.c.used))
    assert [row.used for row in found] == [100] * 4
    for database in both:
        await database.close()
