"""The door of a sandbox, without the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from tests.security.network.loopback_door import LoopbackDoor, loopback_door


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(sqlite_url)
    yield opened
    await opened.close()


@pytest.fixture
async def door(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoopbackDoor]:
    thread = await Store(database).thread("acme", "t")
    async with loopback_door(ApprovalStore(database), thread, monkeypatch) as made:
        yield made
