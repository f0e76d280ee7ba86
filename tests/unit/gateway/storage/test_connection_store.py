"""Connections that are open, and what is recorded of them when their process is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select

from gateway.storage.audit_store import AuditEntry
from gateway.storage.connection_store import ConnectionStore
from gateway.storage.database import Database
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.tables import audit_records, open_connections
from gateway.storage.waiting_store import LeaseStore

LEASE_US = 1_000
OPEN = AuditEntry("acme", "connection", thread="t", outcome="interrupted", details={"host": "a.test", "bytes_up": None})
OVER = AuditEntry("acme", "connection", thread="t", outcome="completed", details={"host": "a.test", "bytes_up": 5})


class Process:
    """A gateway process at a time of its own."""

    def __init__(self, database: Database, name: str) -> None:
        self.now_us = 1_000_000
        self.name = name
        self.connections = ConnectionStore(database, lambda: self.now_us, gateway=name)
        self.leases = LeaseStore(database, lambda: self.now_us)

    async def live(self) -> None:
        await self.leases.take(self.name, LEASE_US)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def records(database: Database) -> list[tuple[str, int, Any]]:
    rows = await database.rows(select(audit_records).order_by(audit_records.c.sequence))
    return [(row.outcome, row.at_us, json.loads(row.details)) for row in rows]


async def open_ids(database: Database) -> set[str]:
    return {row.id for row in await database.rows(select(open_connections.c.id))}


async def test_a_connection_is_open_until_its_record_is_written(database: Database) -> None:
    process = Process(database, "gw_1")
    await process.connections.write({"conn_1": OPEN, "conn_2": OPEN}, [("", OVER)])
    assert await open_ids(database) == {"conn_1", "conn_2"}
    await process.connections.write({"conn_3": OPEN}, [("conn_1", OVER), ("conn_2", None)])
    assert await open_ids(database) == {"conn_3"}
    assert [outcome for outcome, *_ in await records(database)] == ["completed", "completed"]


async def test_the_connections_of_a_lost_process_are_recorded_once_and_those_of_others_stay(database: Database) -> None:
    lost, lives = Process(database, "gw_lost"), Process(database, "gw_lives")
    await lost.live()
    await lost.connections.write({"conn_1": OPEN}, [])
    lost.now_us += 1
    await lost.connections.write({"conn_2": OPEN}, [])
    await lives.connections.write({"conn_3": OPEN}, [])
    await lives.live()
    await lives.leases.reap(all_=True)
    assert await records(database) == [], "both have their leases"
    lives.now_us += 2 * LEASE_US
    await lives.live()
    await lives.leases.reap()
    assert await open_ids(database) == {"conn_3"}
    interrupted = [("interrupted", at_us, dict(OPEN.details)) for at_us in (1_000_000, 1_000_001)]
    assert await records(database) == interrupted
    # It was only stopped: what it knows of these comes too late, and what it begins anew is recorded.
    await lost.connections.write({}, [("conn_1", OVER), ("", OVER)])
    assert [outcome for outcome, *_ in await records(database)] == ["interrupted", "interrupted", "completed"]


async def test_nothing_is_recorded_of_a_tenant_that_was_erased(database: Database) -> None:
    process = Process(database, "gw_1")
    await process.connections.write({"conn_1": OPEN}, [])
    removed = await ErasureStore(database).remove_tenant("acme")
    assert removed["open_connections"] == 1
    await process.connections.write({}, [("conn_1", OVER)])
    await process.leases.reap(all_=True)
    assert await records(database) == []
    await process.connections.write({}, [("", OVER)])
    assert len(await records(database)) == 1
