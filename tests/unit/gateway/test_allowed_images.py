"""Images that an operator does not allow: refused before they come into force, and to each call after that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.agents.agents import agents_of_all
from gateway.config.config import Config
from gateway.errors import Misconfigured, from_sandbox
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_check import PolicyChecker
from gateway.policy_versions.policy_files import PolicyFiles
from gateway.storage.database import Database
from gateway.storage.policy_store import OPERATOR, PolicyStore
from gateway.tenancy.tenants import Tenants, load_tenants
from sandbox.errors import ImageRefused
from sandbox.keeper.leases import ImageGate
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import SandboxSpec


def config(directory: Path, settings: str, image: str = "python:3.12") -> Config:
    (directory / "t.yaml").write_text(f"version: 1\nsandbox: {{image: '{image}'}}\n", encoding="utf-8")
    path = directory / "airlock.yaml"
    path.write_text(f"sandbox: {settings}\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8")
    return Config.load(path)


@pytest.fixture
async def policies(database_url: str) -> AsyncIterator[Policies]:
    database = await Database.open(database_url)
    made = Policies(PolicyStore(database))
    await made.open()
    yield made
    made.close()
    await database.close()


def refused(settings: str, directory: Path, image: str = "python:3.12") -> str:
    return load_tenants(config(directory, settings, image))["t"].sandbox_spec("thread").refused


def test_a_tenant_s_sandboxes_are_of_an_image_that_the_configuration_allows(tmp_path: Path) -> None:
    assert refused("{images: [python]}", tmp_path) == ""
    assert refused("{}", tmp_path) == ""
    assert "'python:3.12' is not one that `images`" in refused("{images: [airlock-*]}", tmp_path)
    assert "configuration's sandbox section" in refused("{require_digest: true}", tmp_path)
    assert refused("{require_digest: true}", tmp_path, f"python@sha256:{'a' * 64}") == ""


@pytest.mark.parametrize("settings", ["{images: []}", "{images: ['a b']}", "{pull: always}", "{pull_wait_s: 0}"])
def test_a_configuration_says_what_is_wrong_with_its_images(tmp_path: Path, settings: str) -> None:
    with pytest.raises(Misconfigured, match=r"sandbox\.(images|pull)"):
        config(tmp_path, settings)


async def test_a_policy_whose_image_is_not_allowed_does_not_come_into_force(tmp_path: Path, policies: Policies) -> None:
    allowing = config(tmp_path, "{images: [python]}")
    checker = PolicyChecker(allowing, agents_of_all(allowing))
    await checker.check("t", "version: 1\nsandbox: {image: 'python:3'}\n", "text", policies)
    with pytest.raises(Misconfigured, match=r"policy of tenant t: sandbox\.image: image 'alpine' is not one"):
        await checker.check("t", "version: 1\nsandbox: {image: alpine}\n", "text", policies)


async def test_an_operator_s_layer_that_allows_less_comes_into_force_and_calls_name_it(
    tmp_path: Path, policies: Policies
) -> None:
    free = config(tmp_path, "{}")
    files = PolicyFiles(free, policies)
    await files.open()
    files.close()
    tenants = Tenants(free, policies)
    assert (await tenants.named("t")).sandbox_spec("x").refused == ""
    layer = "version: 1\nsandbox: {images: [airlock-*]}\n"
    await PolicyChecker(free, agents_of_all(free)).check(OPERATOR, layer, "text", policies)
    await policies.take([await policies.store.apply(OPERATOR, layer, "apply", "me")])
    assert "'python:3.12' is not one" in (await tenants.named("t")).sandbox_spec("x").refused


async def test_no_sandbox_of_a_refused_image_is_leased_and_processes_are_still_looked_after() -> None:
    class FakeKeeper:
        @asynccontextmanager
        async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Any]:
            yield "sandbox"

        @asynccontextmanager
        async def acquire_existing(self, spec: SandboxSpec) -> AsyncIterator[Any]:
            yield "living"

    keeper = ImageGate(cast(SandboxKeeper, FakeKeeper()))
    allowed, not_allowed = SandboxSpec("t", "x", "a"), SandboxSpec("t", "x", "a", refused="image 'a' is not allowed")
    async with keeper.acquire(allowed) as sandbox:
        assert cast(Any, sandbox) == "sandbox"
    with pytest.raises(ImageRefused, match="not allowed") as reported:
        async with keeper.acquire(not_allowed):
            pass
    assert isinstance(from_sandbox(reported.value), Misconfigured)
    async with keeper.acquire_existing(not_allowed) as sandbox:
        assert cast(Any, sandbox) == "living"
