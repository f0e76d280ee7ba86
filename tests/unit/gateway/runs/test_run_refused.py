"""Runs that are refused before they begin, on a real database: nothing is left of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agent.models.model import Model
from gateway.agents.charged_model import Charges
from gateway.config.model_settings import ModelSettings
from gateway.errors import InvalidArgument, Misconfigured
from gateway.runs.runs import RunRequest
from gateway.storage.database import Database
from gateway.storage.thread_store import ThreadStore
from tests.unit.gateway.runs.test_waiting_runs import Host, World


class WithoutModel(World):
    """A gateway whose environment has no key for the model."""

    def of(self, settings: ModelSettings, charges: Charges | None = None) -> Model:
        raise Misconfigured("no key for the model")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    database = await Database.open(database_url)
    yield WithoutModel(database)
    await database.close()


async def test_a_run_that_is_refused_for_want_of_a_model_or_an_agent_makes_no_thread(world: World) -> None:
    host = Host(world)
    acme = await world.named("acme")
    try:
        with pytest.raises(Misconfigured, match="no key for the model"):
            await host.runs.start(acme, RunRequest("write a haiku", "poems"))
        with pytest.raises(InvalidArgument, match="agent: 'nobody' is not one of"):
            await host.runs.start(acme, RunRequest("write a haiku", "poems", "nobody"))
        assert await ThreadStore(world.database).page("acme", prefix="", before=None, limit=10) == []
    finally:
        await host.runs.close()
