"""Counters and holds on real databases: exact for two openings of one and for two processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, func, insert, select

from gateway.storage.database import Database
from gateway.storage.quota_store import Hold, QuotaStore, Take
from gateway.storage.tables import counters, holds, threads
from gateway.storage.waiting_store import LeaseStore

_TIMES = 120
# Fewer than two take, and more than one does: both must have been at it.
_LIMIT = 150


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = await Database.open(url)
    yield opened
    await opened.close()


@pytest.fixture
async def other(database: Database, url: str) -> AsyncIterator[Database]:
    opened = await Database.open(url)
    yield opened
    await opened.close()


def _take(amount: int = 1, limit: int = _LIMIT, name: str = "n", window: int = 60) -> Take:
    return Take(name, window, 60, amount, limit)


async def test_of_two_openings_of_a_file_exactly_as_many_take_as_there_are(database: Database, other: Database) -> None:
    stores = (QuotaStore(database, "a"), QuotaStore(other, "b"))
    ends = await asyncio.gather(*(store.take("t", [_take()]) for _ in range(_TIMES) for store in stores))
    assert sum(not refused for refused in ends) == _LIMIT
    assert {tuple(refused) for refused in ends} == {(), ("n",)}
    assert await stores[0].used("t", {"n": 60}) == {"n": _LIMIT}


@pytest.mark.usefixtures("database")
async def test_of_two_processes_exactly_as_many_take_and_hold_as_there_are(url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.unit.gateway.hammer", url, gateway, str(_TIMES), str(_LIMIT)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for gateway in ("gw_a", "gw_b")
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    reported = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    taken, held = zip(*(tuple(map(int, out.split())) for out, _ in reported), strict=True)
    assert (sum(taken), sum(held)) == (_LIMIT, _LIMIT)


async def test_what_is_taken_together_is_taken_whole_or_not_at_all(database: Database) -> None:
    store = QuotaStore(database, "a")
    assert await store.take("t", [_take(name="few", limit=1), _take(name="many")], [Hold("h1", "h", 5)]) == ()
    refused = await store.take("t", [_take(name="few", limit=1), _take(name="many")], [Hold("h2", "h", 1)])
    assert refused == ["few", "h"]
    assert await store.used("t", {"few": 60, "many": 60}) == {"few": 1, "many": 1}
    assert (await database.rows(select(holds.c.id)))[0].id == "h1"


async def test_tenants_and_windows_are_counted_apart(database: Database) -> None:
    store = QuotaStore(database, "a")
    for tenant, window in (("t", 60), ("u", 60), ("t", 120)):
        assert await store.take(tenant, [_take(limit=1, window=window)]) == ()
        assert await store.take(tenant, [_take(limit=1, window=window)]) == ["n"]


async def test_an_amount_of_nothing_looks_whether_the_limit_is_reached(database: Database) -> None:
    store = QuotaStore(database, "a")
    assert await store.take("t", [_take(0, limit=10)]) == ()
    await store.add("t", [_take(25, limit=10)])
    assert await store.take("t", [_take(0, limit=10)]) == ["n"]
    assert await store.used("t", {"n": 60, "never": 60}) == {"n": 25, "never": 0}


async def test_more_than_the_limit_is_refused_also_at_first(database: Database) -> None:
    assert await QuotaStore(database, "a").take("t", [_take(11, limit=10)]) == ["n"]


async def test_what_is_given_back_can_be_taken_again_and_never_goes_below_nothing(database: Database) -> None:
    store = QuotaStore(database, "a")
    await store.take("t", [_take(limit=1)])
    await store.give_back("t", [_take()])
    await store.give_back("t", [_take()])
    assert await store.used("t", {"n": 60}) == {"n": 0}
    assert await store.take("t", [_take(limit=1)]) == ()


async def test_old_windows_are_forgotten_and_others_names_stay(database: Database) -> None:
    store = QuotaStore(database, "a")
    for window in (60, 120, 180, 240):
        await store.take("t", [_take(window=window)])
    await store.take("t", [_take(window=60, name="m")])
    found = await database.rows(select(counters.c.name, counters.c.window_us).order_by(counters.c.window_us))
    assert [tuple(row) for row in found] == [("m", 60), ("n", 120), ("n", 180), ("n", 240)]


async def test_the_holds_of_a_killed_gateway_are_free_once_its_lease_is_over_and_others_keep_theirs(
    database: Database, other: Database
) -> None:
    leases = LeaseStore(other)
    await leases.take("b", 60_000_000)
    store, others = QuotaStore(database, "a"), QuotaStore(other, "b")
    assert await store.take("t", holding=[Hold("h1", "h", 2)]) == ()
    assert await others.take("t", holding=[Hold("h2", "h", 2)]) == ()
    assert await store.take("t", holding=[Hold("h3", "h", 2)]) == ["h"]
    await leases.reap(all_=True)
    assert await store.take("t", holding=[Hold("h4", "h", 2)]) == ()
    await store.release(["h2"])  # another's
    assert await store.take("t", holding=[Hold("h5", "h", 2)]) == ["h"]


async def test_work_that_refuses_does_not_undo_its_neighbours(database: Database) -> None:
    def row(name: str) -> dict[str, object]:
        return {"id": name, "tenant": "t", "name": name, "created_us": 1}

    def refuses(connection: Connection) -> None:
        connection.execute(insert(threads), row("b"))
        raise LookupError("no")

    def counts(connection: Connection) -> int:
        return int(connection.execute(select(func.count()).select_from(threads)).scalar_one())

    write, refused, counted = await asyncio.gather(
        database.write((insert(threads), row("a"))),
        database.transact(refuses),
        database.transact(counts),
        return_exceptions=True,
    )
    assert write is None
    assert isinstance(refused, LookupError)
    assert counted == 1
    assert [found.id for found in await database.rows(select(threads.c.id))] == ["a"]
