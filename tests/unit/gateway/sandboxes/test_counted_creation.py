"""How many sandboxes a tenant may have made in a minute, counted where all gateways of a database look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from google.rpc import error_details_pb2

from gateway.errors import Overloaded, QuotaExceeded, from_sandbox
from gateway.policy.document import QuotasSection
from gateway.sandboxes.counted_creation import CountedCreation
from gateway.serving.edge import status_of
from gateway.storage.database import Database
from gateway.storage.quota_store import QuotaStore
from gateway.tenancy.quotas import Quotas
from sandbox.engines.engine import Engine
from sandbox.errors import SandboxUnavailable, TooManyCreations, TooManyWaiting
from sandbox.sandbox import SandboxSpec

_MINUTE_US = 60_000_000
_START_US = 1_795_262_400_000_000 + _MINUTE_US // 4
LIMITS = {"two": QuotasSection(sandboxes_per_minute=2), "free": QuotasSection()}


class CountingEngine:
    """Makes what it is asked for, unless that fails, and knows what lives and what is stopped."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.living: set[str] = set()
        self.resting: set[str] = set()
        self.fails = False

    async def create(self, spec: SandboxSpec) -> str:
        if self.fails:
            raise SandboxUnavailable("no")
        self.made.append(spec.thread)
        return spec.thread

    def has(self, spec: SandboxSpec) -> bool:
        return spec.thread in self.living

    def stopped(self, spec: SandboxSpec) -> str | None:
        return spec.thread if spec.thread in self.resting else None


class Gateways:
    """Gateways of one database, each with an engine of its own, and one clock."""

    def __init__(self, database: Database) -> None:
        self.now_us = _START_US
        self.engines = [CountingEngine(), CountingEngine()]
        self._counted = [
            CountedCreation(
                cast(Engine, engine),
                cast(Engine, engine),
                Quotas(QuotaStore(database, f"gateway-{number}"), clock=lambda: self.now_us),
                self._quotas_of,
            )
            for number, engine in enumerate(self.engines)
        ]

    async def _quotas_of(self, tenant: str) -> QuotasSection:
        return LIMITS[tenant]

    async def create(self, thread: str, *, tenant: str = "two", gateway: int = 0) -> Any:
        return await self._counted[gateway].create(SandboxSpec(tenant, thread, "image"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def gateways(database: Database) -> Gateways:
    return Gateways(database)


async def test_one_more_than_the_quota_is_refused_until_the_minute_is_over(gateways: Gateways) -> None:
    assert await gateways.create("a") == "a"
    await gateways.create("b", gateway=1)
    with pytest.raises(TooManyCreations, match="sandboxes_per_minute: all 2 of the tenant's quota are used") as refused:
        await gateways.create("c")
    assert refused.value.retry_after_s == 45
    assert gateways.engines[0].made == ["a"]
    gateways.now_us += 45 * 1_000_000
    assert await gateways.create("c") == "c"


async def test_the_client_reads_which_quota_it_is_and_when_to_come_back(gateways: Gateways) -> None:
    for thread in "ab":
        await gateways.create(thread)
    with pytest.raises(TooManyCreations) as refused:
        await gateways.create("c")
    error = from_sandbox(refused.value)
    assert isinstance(error, QuotaExceeded)
    assert error.details == {"quota": "sandboxes_per_minute", "limit": "2"}
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status_of(error).details)
    assert retry.retry_delay.seconds == 45


def test_too_many_that_wait_are_an_overload_and_no_quota() -> None:
    error = from_sandbox(TooManyWaiting("wait", 2.0))
    assert (type(error), error.retry_after_s if isinstance(error, Overloaded) else None) == (Overloaded, 2.0)


async def test_what_lives_or_starts_again_is_not_counted(gateways: Gateways) -> None:
    engine = gateways.engines[0]
    engine.living.update("xy")
    engine.resting.update("zw")
    for thread in "xyzwab":
        await gateways.create(thread)
    with pytest.raises(TooManyCreations):
        await gateways.create("c")


async def test_what_could_not_be_made_is_counted(gateways: Gateways) -> None:
    gateways.engines[0].fails = True
    for thread in "ab":
        with pytest.raises(SandboxUnavailable):
            await gateways.create(thread)
    with pytest.raises(TooManyCreations):
        await gateways.create("c")


async def test_another_tenant_and_one_without_a_quota_are_not_delayed(gateways: Gateways) -> None:
    for thread in "ab":
        await gateways.create(thread)
    for number in range(10):
        await gateways.create(f"{number}", tenant="free")
