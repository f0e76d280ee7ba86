from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy import delete, update

from gateway.sandboxes.creation_in_threads import CreationInThreads
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.storage.tables import threads
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import SandboxSpec


class Engine:
    async def create(self, spec: SandboxSpec) -> Any:
        return spec.thread


async def test_a_thread_that_is_going_or_gone_gets_no_sandbox(database_url: str) -> None:
    database = await Database.open(database_url)
    try:
        store = Store(database)
        await store.thread("acme", "th")
        creation = CreationInThreads(cast(Any, Engine()), store.is_open)
        spec = SandboxSpec(tenant="acme", thread="th", image="i")
        assert await creation.create(spec) == cast(Any, "th")
        with pytest.raises(SandboxUnavailable, match="being deleted"):
            await creation.create(SandboxSpec(tenant="other", thread="th", image="i"))
        await database.write((update(threads).values(deletion="del_1"), None))
        with pytest.raises(SandboxUnavailable, match="being deleted"):
            await creation.create(spec)
        await database.write((delete(threads), None))
        with pytest.raises(SandboxUnavailable, match="being deleted"):
            await creation.create(spec)
    finally:
        await database.close()
