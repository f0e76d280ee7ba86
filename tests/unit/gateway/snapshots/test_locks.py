"""Locks in the database: one who changes, several who read, and nothing is removed or written under a lost lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import delete, func, select, update

from gateway.errors import InProgress, Unavailable
from gateway.snapshots import locks as locks_module
from gateway.snapshots.locks import DatabaseLocks
from gateway.storage.database import Database
from gateway.storage.lock_store import LockStore
from gateway.storage.tables import snapshot_locks


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(locks_module, "_RETRY_ROW_S", 0.02)


async def test_one_takes_at_a_time_and_several_restore_on_two_gateways(database: Database) -> None:
    one, two, other = (DatabaseLocks(LockStore(database), scope) for scope in ("a", "a", "b"))
    async with one.locked("lock"), two.locked("lock"):
        with pytest.raises(InProgress):
            async with one.locked("lock", exclusive=True):
                pass
    async with one.locked("lock", exclusive=True):
        for exclusive in (True, False):
            with pytest.raises(InProgress):
                async with two.locked("lock", exclusive=exclusive):
                    pass
        async with two.locked("forking"), other.locked("lock", exclusive=True):
            pass
    assert await database.scalar(select(func.count()).select_from(snapshot_locks)) == 0


async def test_the_lock_of_a_killed_process_ends_and_its_work_with_it(database: Database) -> None:
    killed, next_one = (DatabaseLocks(LockStore(database), "a") for _ in range(2))
    async with killed.locked("lock", exclusive=True):
        killed.check(40)
        with pytest.raises(Unavailable):
            killed.check(61)
        await database.write((update(snapshot_locks).values(expires_us=0), None))
        async with next_one.locked("lock", exclusive=True):
            next_one.check(40)
            assert await LockStore(database).renew(killed.held, 1) is False
    with pytest.raises(Unavailable):
        next_one.check(0)


async def test_a_held_lock_is_renewed_and_who_lost_it_may_remove_nothing(database: Database) -> None:
    held = DatabaseLocks(LockStore(database), "a", lease_s=1.2)
    async with held.locked("lock", exclusive=True):
        await asyncio.sleep(1.5)
        held.check(0)
        with pytest.raises(InProgress):
            async with DatabaseLocks(LockStore(database), "a").locked("lock"):
                pass
        await database.write((delete(snapshot_locks), None))
        await asyncio.sleep(1.5)
        with pytest.raises(Unavailable):
            held.check(0)


async def test_who_goes_away_while_taking_a_lock_leaves_none(database: Database) -> None:
    async def take() -> None:
        async with DatabaseLocks(LockStore(database), "a").locked("lock", exclusive=True):
            await asyncio.sleep(60)

    taking = asyncio.create_task(take())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with DatabaseLocks(LockStore(database), "a").locked("lock", exclusive=True):
        pass
