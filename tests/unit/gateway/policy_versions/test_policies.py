"""Which policy is in force: the database decides, gateways follow it, and nothing is compiled before it is needed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.errors import Misconfigured, NotFound
from gateway.policy_versions.policies import Policies
from gateway.storage.database import Database
from gateway.storage.policy_store import OPERATOR, PolicyStore, digest_of_text
from gateway.tenancy.tenants import Tenant


def _text(name: str, *, effect: str = "allow") -> str:
    return f"version: 1\nrules:\n- {{id: {name}, tools: [execute], effect: {effect}, reason: r}}\n"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[PolicyStore]:
    database = await Database.open(database_url)
    yield PolicyStore(database)
    await database.close()


@pytest.fixture
async def policies(store: PolicyStore) -> AsyncIterator[Policies]:
    made = Policies(store)
    await made.open()
    yield made
    made.close()


async def _put(policies: Policies, tenant: str, text: str) -> None:
    await policies.take([await policies.store.apply(tenant, text, "apply", "me")])


def _rule(tenant: Tenant) -> str:
    return tenant.policy.judge("execute", {"command": "true"}).rule


async def test_history_has_every_act_and_the_last_is_in_force(store: PolicyStore) -> None:
    for number, text in enumerate(("a", "b", "a")):
        await store.apply("t", text, "apply", f"user{number}", f"why {number}")
    await store.apply("other", "c", "apply", "u")
    assert [(one.digest, one.by, one.comment) for one in await store.history("t", 10)] == [
        (digest_of_text("a"), "user2", "why 2"),
        (digest_of_text("b"), "user1", "why 1"),
        (digest_of_text("a"), "user0", "why 0"),
    ]
    current = await store.current("t")
    assert current is not None
    assert await store.text(current.digest) == "a"
    with pytest.raises(NotFound, match="airlock policy history"):
        await store.text("0" * 64)


async def test_two_gateways_that_see_one_edited_file_make_one_change(store: PolicyStore) -> None:
    made = await asyncio.gather(*(store.apply("t", "a", "file", f"gateway {n}") for n in range(8)))
    assert len({change.id for change in made}) == 1
    applied = await store.apply("t", "b", "apply", "me")
    again = await store.apply("t", "a", "file", "gateway 9")
    assert again.id == applied.id  # the file was not edited since: what was applied stays
    assert [change.kind for change in await store.history("t", 9)] == ["apply", "file"]


async def test_what_is_applied_is_in_force_for_who_follows_and_not_for_who_is_pinned(policies: Policies) -> None:
    await _put(policies, "t", _text("first"))
    follows = Tenant("t", await policies.in_force("t"), ModelSettings(), {})
    pinned = follows.pinned()
    await _put(policies, "t", _text("second"))
    assert (_rule(follows), _rule(pinned)) == ("second", "first")
    assert follows.policy_reference != pinned.policy_reference
    again = (await policies.at("t", pinned.policy_reference)).policy
    assert again.version == pinned.policy.version


async def test_the_operators_layer_comes_into_force_for_all(policies: Policies) -> None:
    await _put(policies, "t", _text("own"))
    tenant = Tenant("t", await policies.in_force("t"), ModelSettings(), {})
    alone = tenant.policy_reference
    assert tenant.policy.judge("execute", {"command": "true"}).verdict == "allow"
    await _put(policies, OPERATOR, _text("never", effect="deny"))
    assert tenant.policy.judge("execute", {"command": "true"}).verdict == "deny"
    assert (await policies.at("t", alone)).policy.judge("execute", {"command": "true"}).verdict == "allow"


async def test_another_gateway_follows(store: PolicyStore, policies: Policies) -> None:
    await _put(policies, "t", _text("first"))
    other = Policies(store)
    await other.open()
    async with other.following():
        tenant = Tenant("t", await other.in_force("t"), ModelSettings(), {})
        await store.apply("t", _text("second"), "apply", "me")
        async with asyncio.timeout(30):
            while _rule(tenant) != "second":
                await asyncio.sleep(0.01)
    other.close()


async def test_changes_that_become_visible_late_do_not_come_back_into_force(policies: Policies) -> None:
    first = await policies.store.apply("t", _text("first"), "apply", "me")
    second = await policies.store.apply("t", _text("second"), "apply", "me")
    await policies.take([second])
    await policies.take([first])
    assert (await policies.in_force("t")).policy.judge("execute", {"command": "x"}).rule == "second"


async def test_a_version_that_does_not_load_leaves_the_last_valid_one_and_is_never_a_first_one(
    policies: Policies,
) -> None:
    await _put(policies, "t", _text("first"))
    tenant = Tenant("t", await policies.in_force("t"), ModelSettings(), {})
    await _put(policies, "t", "version: 99")
    assert _rule(tenant) == "first"
    await _put(policies, "u", "version: 99")
    with pytest.raises(Misconfigured, match="tenant u no longer loads"):
        await policies.in_force("u")
    with pytest.raises(Misconfigured, match="airlock policy apply FILE --tenant nobody"):
        await policies.in_force("nobody")


async def test_a_policy_is_compiled_when_it_is_first_needed_and_once_for_all_that_have_it(store: PolicyStore) -> None:
    await asyncio.gather(*(store.apply(f"t{n}", _text("same"), "apply", "me") for n in range(50)))
    policies = Policies(store)
    await policies.open()
    assert policies.compiled == 0
    held = await asyncio.gather(*(policies.in_force(f"t{n}") for n in range(50)))
    assert policies.compiled == 1
    assert len({id(one.policy) for one in held}) == 1
    policies.close()


async def test_a_quiet_tenant_is_forgotten_unless_a_caller_uses_it(store: PolicyStore) -> None:
    for n in range(6):
        await store.apply(f"t{n}", _text(f"rule{n}"), "apply", "me")
    policies = Policies(store, kept=2)
    await policies.open()
    held = Tenant("t0", await policies.in_force("t0"), ModelSettings(), {})
    for n in range(6):
        await policies.in_force(f"t{n}")
    gc.collect()
    assert policies.compiled == 6
    await policies.in_force("t0")
    assert policies.compiled == 6  # a run that is under way keeps its own
    await _put(policies, "t0", _text("new"))
    assert _rule(held) == "new"
    await policies.in_force("t1")
    assert policies.compiled == 8
    policies.close()
