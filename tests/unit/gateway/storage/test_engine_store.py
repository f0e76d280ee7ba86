"""Threads of an engine that is gone, moved to another one, on real databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, update

from gateway.storage.audit_reader import AuditReader
from gateway.storage.database import Database
from gateway.storage.engine_store import EngineServed, EngineStore, StoredEngine
from gateway.storage.store import Store
from gateway.storage.tables import audit_records, threads
from gateway.storage.waiting_store import LeaseStore

LONG_US = 60_000_000
THREADS = (("a", "1", "E1"), ("a", "2", "E1"), ("b", "1", "E1"), ("b", "2", "E2"), ("b", "3", None))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    for tenant, name, engine in THREADS:
        thread = await Store(opened).thread(tenant, name)
        await opened.write((update(threads).where(threads.c.id == thread.id).values(engine=engine), None))
    yield opened
    await opened.close()


async def _engines(database: Database) -> set[tuple[str, str, str | None]]:
    return {
        (row.tenant, row.name, row.engine)
        for row in await database.rows(select(threads.c.tenant, threads.c.name, threads.c.engine))
    }


async def test_all_threads_of_an_engine_are_moved_and_every_audit_says_so(database: Database) -> None:
    store = EngineStore(database)
    assert await store.adopt("E1", to="E2", tenant=None, by="local:me") == {"a": 2, "b": 1}
    moved = {("a", "1", "E2"), ("a", "2", "E2"), ("b", "1", "E2"), ("b", "2", "E2"), ("b", "3", None)}
    assert await _engines(database) == moved
    reported = await database.rows(select(audit_records.c.tenant, audit_records.c.actor, audit_records.c.details))
    assert {row.tenant: json.loads(row.details) for row in reported} == {
        "a": {"from": "E1", "to": "E2", "threads": 2},
        "b": {"from": "E1", "to": "E2", "threads": 1},
        "": {"from": "E1", "to": "E2", "threads": 3, "tenants": 2},
    }
    assert {row.actor for row in reported} == {"local:me"}
    assert all([(await AuditReader(database).verified(tenant)).whole for tenant in ("", "a", "b")])
    assert await store.adopt("E1", to="E2", tenant=None, by="local:me") == {}
    assert len(await database.rows(select(audit_records.c.sequence))) == len(reported), (
        "nothing was done, nothing is reported"
    )


async def test_one_tenants_threads_are_moved_alone(database: Database) -> None:
    store = EngineStore(database)
    assert await store.adopt("E1", to="E2", tenant="a", by="local:me") == {"a": 2}
    assert await store.engines() == [StoredEngine("E1", 1, serves=False), StoredEngine("E2", 3, serves=False)]


async def test_no_thread_is_moved_while_a_gateway_of_its_engine_serves(database: Database) -> None:
    store, leases = EngineStore(database), LeaseStore(database)
    before = await _engines(database)
    await leases.take("gw_1", LONG_US, engine="E1", address="10.0.0.1:7443")
    with pytest.raises(EngineServed, match=r"10\.0\.0\.1:7443"):
        await store.adopt("E1", to="E2", tenant=None, by="local:me")
    assert await _engines(database) == before
    assert (await store.engines())[0] == StoredEngine("E1", 3, serves=True)
    await leases.end(["gw_1"])
    assert await store.adopt("E1", to="E2", tenant=None, by="local:me") == {"a": 2, "b": 1}
