"""The end of sandboxes in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.e2b import lifecycle
from gateway.e2b.lifecycle import Lifecycle
from gateway.errors import SandboxBusy
from gateway.storage.database import Database
from gateway.storage.e2b_store import RUNNING, E2bSandbox, E2bStore
from gateway.storage.store import Store
from gateway.support.background import in_background

BUSY, QUIET = "busy", "quiet"


async def test_sandboxes_that_stay_busy_keep_no_other_tenants_from_their_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_EVERY_S", 0.01)
    database = await Database.open(sqlite_url)
    store = E2bStore(database, lambda: 1000)
    for number in range(100):
        await _add(store, database, BUSY, number)
    await _add(store, database, QUIET, 900)  # due last
    ended = asyncio.Event()
    trying = 0

    async def delete(tenant: str, _thread: str) -> None:
        nonlocal trying
        if tenant == QUIET:
            ended.set()
            return
        trying += 1
        await asyncio.sleep(60)
        raise SandboxBusy("a call is in progress")

    async def named(name: str) -> str:
        return name

    parts: Any = SimpleNamespace(delete=delete, named=named)
    async with in_background(Lifecycle(store, parts, parts, parts, parts).follow(), "ends"):
        async with asyncio.timeout(30):
            await ended.wait()
    assert trying <= lifecycle._ENDS_AT_ONCE
    await database.close()


async def _add(store: E2bStore, database: Database, tenant: str, number: int) -> None:
    thread = f"e2b-{number}"
    await Store(database).thread(tenant, thread)
    options: dict[str, Any] = {}
    assert await store.add(E2bSandbox(str(number), tenant, thread, RUNNING, 1, number, options, (), "s"))
