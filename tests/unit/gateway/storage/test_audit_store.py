import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import DatabaseError

from airlock.audit_chain import START_DIGEST, AuditRecord
from gateway.errors import Unavailable
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.tables import audit_heads, audit_records, threads


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def chain(database: Database, tenant: str) -> list[AuditRecord]:
    return [record async for record in AuditReader(database).chain(tenant)]


async def whole(database: Database, tenant: str) -> bool:
    return (await AuditReader(database).verified(tenant)).whole


async def test_each_record_covers_the_one_before_it(database: Database) -> None:
    store = AuditStore(database, lambda: 5)
    await store.write(AuditEntry("a", "tool_call", tool="execute", details={"exit_code": 0}))
    await store.write(AuditEntry("a", "run_started"), AuditEntry("b", "run_started"), AuditEntry("a", "run_finished"))
    records = await chain(database, "a")
    assert [(record.sequence, record.kind) for record in records] == [
        (1, "tool_call"),
        (2, "run_started"),
        (3, "run_finished"),
    ]
    assert [record.previous_digest for record in records] == [START_DIGEST, records[0].digest, records[1].digest]
    assert all(record.digest == record.computed_digest() for record in records)
    assert len(await chain(database, "b")) == 1
    assert await whole(database, "a")


async def test_what_many_write_at_once_makes_chains_without_gaps(database: Database) -> None:
    stores = [AuditStore(database) for _ in range(4)]
    await asyncio.gather(
        *(stores[n % 4].write(AuditEntry(f"t{n % 7}", "tool_call", call_id=str(n))) for n in range(300))
    )
    lengths = [len(await chain(database, f"t{tenant}")) for tenant in range(7)]
    assert sum(lengths) == 300
    assert all([await whole(database, f"t{tenant}") for tenant in range(7)])


async def test_gateways_that_share_a_database_write_one_chain_and_do_not_wait_in_a_circle(database_url: str) -> None:
    gateways = [await Database.open(database_url) for _ in range(3)]
    try:
        tenants = ["x", "y", "z"]
        async with asyncio.timeout(60):
            for order in range(20):
                await asyncio.gather(
                    *(
                        AuditStore(gateway).write(
                            *(AuditEntry(tenants[(at + order + n) % 3], "tool_call") for n in range(3))
                        )
                        for at, gateway in enumerate(gateways)
                        for _ in range(4)
                    )
                )
        for tenant in tenants:
            assert len(await chain(gateways[0], tenant)) == 20 * 12
            assert await whole(gateways[0], tenant)
    finally:
        for gateway in gateways:
            await gateway.close()


async def test_an_entry_is_written_with_its_change_or_not_at_all(database: Database) -> None:
    store = AuditStore(database)
    row = {"id": "1", "tenant": "t", "name": "n", "created_us": 1}

    def work(connection: Connection, *, fails: bool) -> None:
        store.append(connection, AuditEntry("t", "run_started", run_id=str(fails)))
        connection.execute(insert(threads), row)
        if fails:
            raise ValueError

    answers = await asyncio.gather(
        database.transact(partial(work, fails=True)),
        database.transact(partial(work, fails=False)),
        database.transact(partial(work, fails=False)),
        return_exceptions=True,
    )
    assert isinstance(answers[0], ValueError)
    assert answers[1] is None
    assert isinstance(answers[2], ConstraintViolated)
    assert [record.run_id for record in await chain(database, "t")] == ["False"]
    assert await whole(database, "t")


async def test_the_database_refuses_to_change_or_remove_a_record(database: Database) -> None:
    await AuditStore(database).write(AuditEntry("t", "run_started"), AuditEntry("t", "run_finished"))
    for statement in (
        update(audit_records).where(audit_records.c.sequence == 1).values(kind="nothing"),
        delete(audit_records).where(audit_records.c.sequence == 2),
        update(audit_heads).values(sequence=1),
        delete(audit_heads).where(audit_heads.c.tenant == "t"),
        delete(audit_heads),
    ):
        with pytest.raises((DatabaseError, ConstraintViolated, Unavailable)):
            await database.write((statement, None))
    assert await whole(database, "t")


@pytest.mark.parametrize("table", ["audit_heads", "audit_records"])
async def test_the_database_refuses_to_replace_or_truncate_what_is_there(database: Database, table: str) -> None:
    await AuditStore(database).write(AuditEntry("t", "run_started"), AuditEntry("t", "run_finished"))
    before = (await chain(database, "t"), await AuditReader(database).head("t"))

    def attack(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"REPLACE INTO {table} SELECT * FROM {table}")
        else:
            connection.exec_driver_sql(f"TRUNCATE {table}")

    with contextlib.suppress(DatabaseError, ConstraintViolated, Unavailable):
        await database.transact(attack)
    assert (await chain(database, "t"), await AuditReader(database).head("t")) == before
    assert await whole(database, "t")


async def test_old_records_are_pruned_and_the_chain_says_so(database: Database) -> None:
    now = iter(range(1, 100))
    store = AuditStore(database, lambda: next(now))
    for n in range(10):
        await store.write(AuditEntry("t", "tool_call", call_id=str(n)))
    assert await database.transact(partial(store.prune, tenant="t", before_us=5)) == 4
    assert await database.transact(partial(store.prune, tenant="t", before_us=5)) == 0
    records = await chain(database, "t")
    assert [record.sequence for record in records] == [5, 6, 7, 8, 9, 10, 11]
    assert records[-1].kind == "audit_pruned"
    assert json.loads(records[-1].details)["records"] == 4
    assert await whole(database, "t")
    assert await database.transact(partial(store.prune, tenant="t", before_us=1_000)) == 6
    assert [record.kind for record in await chain(database, "t")] == ["audit_pruned", "audit_pruned"]
    assert await whole(database, "t")
    assert await database.transact(partial(store.prune, tenant="nobody", before_us=1_000)) == 0


async def test_an_erased_chain_is_gone_and_a_later_one_begins_anew(database: Database) -> None:
    store = AuditStore(database)
    await store.write(AuditEntry("t", "run_started"), AuditEntry("other", "run_started"))
    assert await database.transact(partial(store.erase, tenant="t")) == 1
    assert await chain(database, "t") == []
    await store.write(AuditEntry("t", "run_started"))
    assert [record.sequence for record in await chain(database, "t")] == [1]
    assert await whole(database, "t")
    assert len(await chain(database, "other")) == 1


async def test_what_is_too_long_is_cut_and_a_time_that_is_given_is_kept(database: Database) -> None:
    store = AuditStore(database, lambda: 7)
    await store.write(AuditEntry("t", "tool_call", "a" * 300, tool="b" * 200, at_us=3))
    record = (await chain(database, "t"))[0]
    assert (len(record.actor), len(record.tool), record.at_us) == (256, 128, 3)
    assert AuditRecord.of_line(record.line()) == record
    with pytest.raises(ValueError, match="not a record"):
        AuditRecord.of_line(replace(record, actor=1).line())  # type: ignore[arg-type]


async def test_the_head_is_read_with_the_newest_record(database: Database) -> None:
    store = AuditStore(database)
    assert await AuditReader(database).head("t") is None
    await store.write(AuditEntry("t", "run_started"))
    head = await AuditReader(database).head("t")
    rows = await database.rows(select(audit_records.c.digest))
    assert head is not None
    assert (head.sequence, head.digest, head.first_sequence) == (1, rows[0].digest, 1)


async def test_a_nul_in_what_a_model_says_breaks_no_chain(database: Database) -> None:
    said = AuditEntry("a", "tool_call", actor="k\0", thread="t\0", tool="x\0y", rule="r\0", details={"why": "\0"})
    await AuditStore(database).write(said)
    (record,) = await chain(database, "a")
    assert (record.tool, record.rule) == ("x\ufffdy", "r\ufffd")
    assert await whole(database, "a")
