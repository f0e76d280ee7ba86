"""The thread of a call is made by its first use, unless its caller was let into that thread alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.errors import NotFound
from gateway.identity.principal import PRINCIPAL, Principal
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant
from tests.unit.gateway.made_parts import made_tool_calls

TENANT = Tenant("t", Policy(PolicyDocument(version=1)), ModelSettings(), {})


async def test_a_caller_that_makes_no_threads_uses_those_that_are_there(sqlite_url: str) -> None:
    database = await Database.open(sqlite_url)
    calls, anybody = made_tool_calls(database), Principal(TENANT)
    there = await calls.thread(TENANT, "there")
    token = PRINCIPAL.set(replace(anybody, makes_threads=False))
    try:
        assert await calls.thread(TENANT, "there") == there
        with pytest.raises(NotFound, match="thread 'gone' not found"):
            await calls.thread(TENANT, "gone")
    finally:
        PRINCIPAL.reset(token)
    assert not await Store(database).is_open("t", "gone")
    await database.close()
