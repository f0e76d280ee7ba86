"""What operators do over the API, on a real socket: keys and policies; and the audit of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest
from sqlalchemy import select

from gateway.client import Client
from gateway.config.config import Config
from gateway.credentials.keys import OPERATOR_SCOPES, make_key
from gateway.data_lifecycle.erasure import TenantAdmin
from gateway.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    PolicyChanged,
    PolicyInvalid,
    RequestIdReused,
    ScopeMissing,
    StillConfigured,
    Unauthenticated,
    Unavailable,
)
from gateway.identity.auth import authentication
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.services.admin_service import AdminService
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from gateway.storage.policy_store import PolicyStore
from gateway.storage.tables import audit_records
from gateway.tenancy.tenants import Tenants
from gateway.v1 import admin_service_pb2_grpc

_POLICY = """\
version: 1
rules:
  - id: all
    tools: [read]
    effect: allow
    reason: Harmless.
"""


async def _never(tenant: str) -> bool:
    del tenant
    return False


async def _nothing() -> None:
    """Nothing happens meanwhile."""


class LosingAdmin(PolicyAdmin):
    """Loses answers of what it did: one for each entry of `meanwhile`, after that has happened."""

    def __init__(self, config: Config, policies: Policies) -> None:
        super().__init__(config, policies)
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def apply(self, *arguments: Any, **named: Any) -> str:
        version = await super().apply(*arguments, **named)
        if self.meanwhile:
            await self.meanwhile.pop(0)()
            raise Unavailable("the connection broke")
        return version


class World:
    """A server with AdminService alone, its database and an operator's key."""

    def __init__(self, address: str, database: Database, operator: str, policies: LosingAdmin) -> None:
        self.address, self.database, self.operator, self.policies = address, database, operator, policies

    def client(self, key: str = "") -> Client:
        return Client(self.address, key or self.operator)

    async def reported(self) -> list[tuple[str, str, dict[str, Any]]]:
        rows = await self.database.rows(select(audit_records).order_by(audit_records.c.at_us))
        return [(row.tenant, row.kind, json.loads(row.details)) for row in rows]


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    config = Config.model_validate(
        {"directory": tmp_path, "tenants": {name: {"policy": "p.yaml"} for name in ("acme", "beta", "gamma")}}
    )
    async with contextlib.AsyncExitStack() as stack:
        database = await Database.open(database_url)
        stack.push_async_callback(database.close)
        policies = Policies(PolicyStore(database))
        stack.callback(policies.close)
        for name in config.tenants:
            await policies.take([await policies.store.apply(name, _POLICY, "apply", "test")])
        key = make_key(OPERATOR_SCOPES, operator=True)
        await KeyStore(database).add("", key)
        erasure = SimpleNamespace(tenant=None, store=SimpleNamespace(was_deleted=_never))
        service = AdminService(
            TenantAdmin(config, policies, database, cast(Any, erasure)),
            KeyStore(database),
            losing := LosingAdmin(config, policies),
            cast(Any, None),
            authentication(config.identity, config.path, database, Tenants(config, policies)),
        )
        server = grpc.aio.server()
        stack.push_async_callback(server.stop, 0)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield World(f"127.0.0.1:{port}", database, key.secret, losing)


async def test_a_key_is_made_listed_rotated_and_revoked_and_both_audits_say_so(world: World) -> None:
    async with world.client() as operator:
        made = await operator.create_key("acme", scopes=["tool"], name="ci", expires_in_s=90)
        assert (made.key.tenant, made.key.scopes, made.key.name) == ("acme", ("tool",), "ci")
        rotated = await operator.rotate_key(made.key.id, overlap_s=10)
        assert rotated.secret != made.secret
        assert (rotated.key.scopes, rotated.key.name) == (("tool",), "ci")
        listed = {key.id: key async for key in operator.keys("acme")}
        old, new = listed[made.key.id], listed[rotated.key.id]
        assert old.replaced_by == new.id
        assert made.key.expires_at is not None
        assert old.expires_at is not None
        assert new.expires_at is not None
        assert old.expires_at < made.key.expires_at < new.expires_at
        with pytest.raises(InvalidArgument, match="already rotated"):
            await operator.rotate_key(made.key.id)
        revoked = (await operator.revoke_key(new.id)).key
        assert revoked.revoked_at is not None
        assert (await operator.revoke_key(new.id)).key == revoked
        with pytest.raises(InvalidArgument, match="is expired or revoked"):
            await operator.rotate_key(new.id)
        assert [key.id async for key in operator.keys("acme")] == [old.id]
        assert {key.id async for key in operator.keys("acme", include_ended=True)} == {old.id, new.id}
    kinds = [(tenant, kind) for tenant, kind, details in await world.reported() if details.get("tenant") == "acme"]
    for tenant in ("", "acme"):
        assert [kind for whose, kind in kinds if whose == tenant and kind != "policy_applied"] == [
            "key_created",
            "key_created",
            "key_rotated",
            "key_revoked",
        ]
    assert made.secret not in str(await world.reported())


async def test_a_key_that_was_asked_for_twice_is_one_with_the_newer_secret_until_it_is_used(world: World) -> None:
    async with world.client() as operator:
        first = await operator.create_key("acme", name="ci", request_id="r1")
        again = await operator.create_key("acme", name="ci", request_id="r1")
        assert again.key.id == first.key.id
        assert again.secret != first.secret
        assert again.key.shown == again.secret[:12]
        assert [key.id async for key in operator.keys("acme")] == [first.key.id]
        with pytest.raises(RequestIdReused):
            await operator.create_key("acme", name="other", request_id="r1")
        with pytest.raises(RequestIdReused):
            await operator.rotate_key(first.key.id, request_id="r1")
        for secret, kind in ((first.secret, Unauthenticated), (again.secret, ScopeMissing)):
            async with world.client(secret) as service:
                with pytest.raises(kind):
                    await anext(service.keys())
        with pytest.raises(Conflict, match="has been used") as caught:
            await operator.create_key("acme", name="ci", request_id="r1")
        assert caught.value.details["key_id"] == first.key.id
    reported = [
        kind for tenant, kind, details in await world.reported() if details.get("key_id") == first.key.id and tenant
    ]
    assert reported == ["key_created", "key_reissued"]


async def test_a_key_that_another_caller_requested_is_not_given_away(world: World) -> None:
    async with world.client() as operator:
        first = await operator.create_key("acme", request_id="r1")
        second = await operator.create_key("")
    async with world.client(second.secret) as other:
        with pytest.raises(RequestIdReused):
            await other.create_key("acme", request_id="r1")
    async with world.client(first.secret) as service:
        with pytest.raises(ScopeMissing):
            await anext(service.keys())


async def test_a_rotation_that_was_asked_for_twice_makes_one_key(world: World) -> None:
    async with world.client() as operator:
        old = await operator.create_key("acme", scopes=["tool"])
        first = await operator.rotate_key(old.key.id, overlap_s=60, request_id="r1")
        again = await operator.rotate_key(old.key.id, overlap_s=60, request_id="r1")
        assert again.key.id == first.key.id
        assert again.secret != first.secret
        listed = {key.id: key async for key in operator.keys("acme")}
        assert listed.keys() == {old.key.id, first.key.id}
        assert listed[old.key.id].replaced_by == first.key.id


async def test_keys_are_listed_by_scope_and_by_state(world: World) -> None:
    async with world.client() as operator:
        made = {
            scope: (await operator.create_key("beta", scopes=[scope])).key.id
            for scope in ("run", "tool", "audit", "approve")
        }
        await operator.revoke_key(made["tool"])

        async def listed(**given: Any) -> set[str]:
            return {key.id async for key in operator.keys("beta", **given)}

        assert await listed(scope="run") == {made["run"]}
        assert await listed(scope="tool") == set()
        assert await listed(scope="tool", include_ended=True) == await listed(state="revoked") == {made["tool"]}
        assert await listed(state="working") == await listed() == set(made.values()) - {made["tool"]}
        assert await listed(state="expired") == set()
        with pytest.raises(InvalidArgument, match="scope"):
            await listed(scope="root")
        with pytest.raises(InvalidArgument, match="state"):
            await listed(state="gone")


async def test_a_policy_that_is_applied_twice_is_one_change_also_on_a_gateway_that_has_not_heard_of_it(
    world: World,
) -> None:
    store = PolicyStore(world.database)
    text = _POLICY + "description: another\n"
    first = await store.apply("acme", text, "apply", "somebody")
    assert await store.apply("acme", text, "apply", "somebody") == first
    assert await store.apply("acme", text, "rollback", "somebody") == first
    async with world.client() as operator:
        version = await operator.apply_policy("acme", text)
        assert version == await operator.apply_policy("acme", text)
        changes = [change.version async for change in operator.policy_changes("acme")]
    assert (changes[0], len(changes)) == (version, 2)
    assert [kind for tenant, kind, _ in await world.reported() if tenant == "acme"].count("policy_applied") == 2


async def test_a_policy_is_replaced_only_while_the_version_expected_is_in_force(world: World) -> None:
    def text(name: str) -> str:
        return _POLICY + f"description: {name}\n"

    async with world.client() as operator:
        layer = await operator.policy("acme")
        assert [(rule.id, rule.effect, rule.enforcement) for rule in layer.rules] == [("all", "allow", "gateway")]
        first = layer.version
        second = await operator.apply_policy("acme", text("second"), expected_version=first)
        third = await operator.apply_policy("acme", text("third"), expected_version=second)
        assert await operator.apply_policy("acme", text("third"), expected_version=second) == third
        for late in ({"text": text("second"), "expected_version": first}, {"version": first, "expected_version": ""}):
            with pytest.raises(PolicyChanged, match="nothing was changed") as refused:
                await operator.apply_policy("acme", **late)
            assert refused.value.details["version"] == third
        assert (await operator.policy("acme")).version == third
        with pytest.raises(PolicyChanged) as refused:
            await operator.apply_policy("", text("above"), expected_version=third)
        assert refused.value.details["version"] == ""
        above = await operator.apply_policy("", text("above"), expected_version="")
        # What another gateway applied, and this one has not heard of.
        await PolicyStore(world.database).apply("", text("over"), "apply", "another")
        with pytest.raises(PolicyChanged):
            await operator.apply_policy("", text("late"), expected_version=above)


async def test_a_policy_whose_answer_was_lost_is_applied_once_and_never_over_what_came_after_it(world: World) -> None:
    mine, theirs = (_POLICY + f"description: {name}\n" for name in ("mine", "theirs"))

    async def another_is_faster() -> None:
        await PolicyStore(world.database).apply("acme", theirs, "apply", "another")

    async with world.client() as operator:
        world.policies.meanwhile = [_nothing, _nothing]
        version = await operator.apply_policy("acme", mine)
        versions = [change.version async for change in operator.policy_changes("acme")]
        assert (versions[0], len(versions)) == (version, 2)
        await operator.apply_policy("acme", _POLICY)
        world.policies.meanwhile = [another_is_faster]
        with pytest.raises(PolicyChanged):
            await operator.apply_policy("acme", mine)
    standing = await PolicyStore(world.database).current("acme")
    assert standing is not None
    assert standing.by == "another"


async def test_a_revoked_operator_is_unauthenticated(world: World) -> None:
    async with world.client() as operator:
        second = await operator.create_key("")
        assert second.key.scopes == ("operate", "audit")
        await operator.revoke_key(second.key.id)
    async with world.client(second.secret) as late:
        with pytest.raises(Unauthenticated):
            await anext(late.keys())


async def test_keys_come_in_pages_of_which_none_is_missing_or_twice(world: World) -> None:
    async with world.client() as operator:
        made = [(await operator.create_key("beta")).key.id for _ in range(55)]
        listed = [key.id async for key in operator.keys("beta")]
    assert sorted(listed) == sorted(made)


@pytest.mark.parametrize(
    "tenant, more, error",
    [
        ("nobody", {}, NotFound),
        ("acme", {"scopes": ["operate"]}, InvalidArgument),
        ("acme", {"scopes": ["approve", "run"]}, InvalidArgument),
        ("acme", {"scopes": ["root"]}, InvalidArgument),
        ("", {"scopes": ["run"]}, InvalidArgument),
        ("acme", {"name": "x" * 129}, InvalidArgument),
        ("acme", {"name": "a\nb"}, InvalidArgument),
        ("acme", {"expires_in_s": -1}, InvalidArgument),
        ("acme", {"expires_in_s": 2**62}, InvalidArgument),
    ],
)
async def test_a_key_that_cannot_be_is_refused(
    world: World, tenant: str, more: dict[str, Any], error: type[Exception]
) -> None:
    async with world.client() as operator:
        with pytest.raises(error):
            await operator.create_key(tenant, **more)


async def test_an_operator_of_the_audit_alone_and_a_tenant_do_not_operate(world: World) -> None:
    async with world.client() as operator:
        auditor = await operator.create_key("", scopes=["audit"])
        tenants = await operator.create_key("acme", scopes=["run", "tool", "files", "audit"])
    for secret in (auditor.secret, tenants.secret):
        async with world.client(secret) as other:
            with pytest.raises(ScopeMissing, match="--operator"):
                await other.create_key("acme")


async def test_a_policy_is_checked_applied_read_and_taken_back(world: World) -> None:
    stricter = _POLICY.replace("read", "ls")
    async with world.client() as operator:
        first = await operator.policy("acme")
        assert first.text == _POLICY
        assert await operator.apply_policy("acme", stricter, check_only=True) == ""
        assert (await operator.policy("acme")).version == first.version
        second = await operator.apply_policy("acme", stricter, comment="tighter")
        assert await operator.apply_policy("acme", stricter) == second
        assert (await operator.policy("acme")).text == stricter
        assert await operator.apply_policy("acme", version=first.version) == first.version
        changes = [change async for change in operator.policy_changes("acme")]
        assert [(change.kind, change.version) for change in changes] == [
            ("rollback", first.version),
            ("apply", second),
            ("apply", first.version),
        ]
        assert changes[0].digest == changes[2].digest != changes[1].digest
        assert [change async for change in operator.policy_changes("acme", limit=2)] == changes[:2]
        assert changes[1].comment == "tighter"
        assert changes[1].by.startswith("alk_")
        for chain in ("acme", ""):
            acts = [
                details for whose, kind, details in await world.reported() if (whose, kind) == (chain, "policy_applied")
            ]
            assert [one["how"] for one in acts if one["tenant"] == "acme"] == ["apply", "apply", "rollback"]
        with pytest.raises(NotFound):
            await operator.policy("acme", "policy_000000000000")
        with pytest.raises(NotFound):
            await operator.policy("nobody")


async def test_a_bad_policy_is_refused_with_its_lines(world: World) -> None:
    async with world.client() as operator:
        with pytest.raises(PolicyInvalid) as refused:
            await operator.apply_policy("acme", _POLICY.replace("effect: allow", "effect: maybe"))
        (problem,) = json.loads(refused.value.details["problems"])
        assert problem["line"] == 5
        assert "effect" in problem["field"]
        many = "version: 1\nrules:\n" + "".join(f"  - {{id: r{n}, effect: maybe}}\n" for n in range(500))
        with pytest.raises(PolicyInvalid):  # the trailer would not hold all of them
            await operator.apply_policy("acme", many)
        assert (await operator.policy("acme")).text == _POLICY


async def test_tenants_are_listed_by_name_and_a_configured_one_is_not_deleted(world: World) -> None:
    async with world.client() as operator:
        assert [one.name async for one in operator.tenants()] == ["acme", "beta", "gamma"]
        await operator.create_key("beta")
        found = await operator.tenant("beta")
        assert found.stored["api_keys"] == 1
        assert found.stored["policy_changes"] == 1
        with pytest.raises(StillConfigured):
            await operator.delete_tenant_data("beta")
        for unknown in ("nobody", ""):
            with pytest.raises(NotFound):
                await operator.tenant(unknown)
            with pytest.raises(NotFound):
                await operator.delete_tenant_data(unknown)
