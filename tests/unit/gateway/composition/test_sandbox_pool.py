"""What the pool always has follows the policies in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.composition import sandboxes
from gateway.composition.foundation import Foundation
from gateway.composition.sandboxes import PoolTarget, filling_pool
from gateway.config.config import Config
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore
from gateway.tenancy.tenants import Tenants
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.sandbox_pool import SandboxPool

NAMES = ["a", "b", "c"]


class FakePool:
    def __init__(self) -> None:
        self.always: dict[str, int] = {}
        self.begun = False
        self.drained = False

    def begin(self) -> None:
        self.begun = True

    async def drain(self) -> None:
        self.drained = True

    def keep(self, kind: PoolKind, number: int) -> None:
        self.always[kind.image] = number

    def forget(self, kind: PoolKind) -> None:
        del self.always[kind.image]


@pytest.fixture
async def policies(database_url: str) -> AsyncIterator[Policies]:
    database = await Database.open(database_url)
    made = Policies(PolicyStore(database))
    await made.open()
    yield made
    made.close()
    await database.close()


async def put(policies: Policies, **images: str) -> None:
    for tenant, image in images.items():
        text = f"version: 1\nsandbox: {{image: '{image}'}}\n"
        await policies.take([await policies.store.apply(tenant, text, "apply", "me")])


def config(directory: Path) -> Config:
    tenants = ", ".join(f"{name}: {{policy: {name}.yaml}}" for name in NAMES)
    path = directory / "airlock.yaml"
    path.write_text(f"sandbox: {{images: [x, y, z], pool_min: 2}}\ntenants: {{{tenants}}}\n", encoding="utf-8")
    return Config.load(path)


async def test_the_pool_always_has_what_most_policies_ask_for_whenever_they_change(
    tmp_path: Path, policies: Policies
) -> None:
    pool = FakePool()
    most = PoolTarget(cast(SandboxPool, pool), Tenants(config(tmp_path), policies), NAMES, 2)
    await put(policies, b="x", c="y")
    await most.update()
    assert pool.always == {"x": 2}  # and one that has no policy is in no one's way
    await put(policies, a="y")
    await most.update()
    assert pool.always == {"y": 2}
    await put(policies, b="z")
    await most.update()
    assert pool.always == {"y": 2}
    await put(policies, a="w", c="w")
    await most.update()
    assert pool.always == {"z": 2}  # the configuration refuses w


async def test_a_gateway_looks_at_them_again_and_again(
    tmp_path: Path, policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "_UPDATE_S", 0)
    given = config(tmp_path)
    on = SimpleNamespace(config=given, tenants=Tenants(given, policies), telemetry=SimpleNamespace(on=False))
    pool = FakePool()
    await put(policies, a="x")
    async with filling_pool(cast(SandboxPool, pool), cast(Foundation, on)):
        assert (pool.begun, pool.always) == (True, {"x": 2})
        await put(policies, a="y")
        async with asyncio.timeout(30):
            while pool.always != {"y": 2}:
                await asyncio.sleep(0)
        assert not pool.drained
    assert pool.drained
