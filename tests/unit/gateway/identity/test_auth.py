"""Who may call what: keys with scopes against services that need one, over a real channel."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import CALLER, Caller
from gateway.credentials.keys import make_key
from gateway.errors import AirlockError, ScopeMissing, Unauthenticated
from gateway.identity.auth import Authentication, Denials
from gateway.identity.authenticators import KeyAuthenticator
from gateway.identity.certificate_authenticator import CertificateAuthenticator
from gateway.identity.principal import Context
from gateway.policy import Policy, PolicyDocument
from gateway.services.process_service import ProcessService
from gateway.services.run_service import RunService
from gateway.services.tool_service import ToolService
from gateway.services.workspace_service import WorkspaceService
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from gateway.storage.tables import audit_records
from gateway.tenancy.tenants import Tenant, Tenants

TENANT = Tenant("acme", Policy(PolicyDocument(version=1)), ModelSettings(), {})


class OneTenant:
    async def named(self, name: str) -> Tenant:
        assert name == "acme"
        return TENANT


class FakeContext:
    """What a servicer sees of a call; an abort is raised as the status's message."""

    def __init__(self, key: str | None) -> None:
        self.key = key

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),) if self.key is not None else ()

    def time_remaining(self) -> float | None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort_with_status(self, status: grpc.Status) -> None:
        raise PermissionError(status.code, status.details)


class Echo:
    """Answers with who called."""

    def __init__(self, scope: str, authenticate: Authenticator) -> None:
        self.scope = scope
        self.authenticate = authenticate

    @unary
    async def Once(self, tenant: Tenant, request: str) -> tuple[str, Caller]:  # noqa: N802
        return tenant.name + request, CALLER.get(Caller())

    @streaming
    async def Many(self, tenant: Tenant, request: str) -> AsyncIterator[tuple[str, Caller]]:  # noqa: N802
        for _ in range(2):
            yield tenant.name + request, CALLER.get(Caller())


@pytest.fixture
async def keys(database_url: str) -> AsyncIterator[KeyStore]:
    database = await Database.open(database_url)
    yield KeyStore(database)
    await database.close()


def _authenticator(keys: KeyStore, clock: Callable[[], float] = time.monotonic) -> Authentication:
    tenants = cast(Tenants, OneTenant())
    by_key = KeyAuthenticator(keys, tenants, clock)
    return Authentication(by_key, None, CertificateAuthenticator((), tenants), Denials(AuditStore(keys._database)))


async def test_an_rpc_learns_by_which_key_it_was_called(keys: KeyStore) -> None:
    key = make_key(["approve"])
    await keys.add("acme", key)
    echo = Echo("approve", _authenticator(keys))
    context = cast(Context, FakeContext(key.secret))
    mine = Caller(key.id, key.shown)
    assert await echo.Once("!", context) == ("acme!", mine)
    assert [answer async for answer in echo.Many("?", context)] == [("acme?", mine)] * 2


@pytest.mark.parametrize(
    "scopes, needed", [(["run"], "tool"), (["run", "tool", "files"], "approve"), (["approve"], "run")]
)
async def test_a_key_for_something_else_is_refused_with_the_scope_it_needs(
    keys: KeyStore, scopes: list[str], needed: str
) -> None:
    key = make_key(scopes)
    await keys.add("acme", key)
    echo = Echo(needed, _authenticator(keys))
    context = cast(Context, FakeContext(key.secret))
    said = f"this call needs {needed}: .*--tenant acme --scope {needed}"
    with pytest.raises(PermissionError, match=said) as refused:
        await echo.Once("", context)
    assert refused.value.args[0] is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(PermissionError, match=said):
        _ = [answer async for answer in echo.Many("", context)]


@pytest.mark.parametrize("key", [None, "alk_guess", "x" * 300])
async def test_without_a_known_key_nothing_is_said(keys: KeyStore, key: str | None) -> None:
    with pytest.raises(Unauthenticated):
        await _authenticator(keys)(cast(Context, FakeContext(key)))


@pytest.mark.parametrize("state", ["unknown", "revoked", "expired"])
async def test_only_the_holder_of_an_expired_key_reads_why_and_operators_see_every_key(
    keys: KeyStore, state: str
) -> None:
    key, now = make_key(), [1_000_000]
    keys.clock = lambda: now[0]
    if state != "unknown":
        await keys.add("acme", key, lifetime_us=1_000_000)
    if state == "revoked":
        await keys.revoke(key.id, by="test")
    now[0] = 3_000_000
    authenticate = _authenticator(keys)
    said, reason = ("has expired", "KEY_EXPIRED") if state == "expired" else ("is not valid", "UNAUTHENTICATED")
    with capture_logs() as logged, pytest.raises(Unauthenticated, match=f"the API key {said}") as refused:
        await authenticate(cast(Context, FakeContext(key.secret)))
    assert (refused.value.details, refused.value.reason) == ({}, reason)
    known = {} if state == "unknown" else {"key_id": key.id, "shown": key.shown, "tenant": "acme"}
    await asyncio.gather(*authenticate.denials._writing)
    rows = await keys._database.rows(select(audit_records.c.details).where(audit_records.c.kind == "denied"))
    for reported in (json.loads(rows[0].details), next(one for one in logged if one["event"] == "denied")):
        assert {name: reported[name] for name in reported if name in ("key_state", "key_id", "shown", "tenant")} == {
            "key_state": state,
            **known,
        }


async def test_a_revoked_key_is_looked_up_again_after_a_second(keys: KeyStore) -> None:
    now = [0.0]
    key = make_key()
    await keys.add("acme", key)
    authenticate = KeyAuthenticator(keys, cast(Tenants, OneTenant()), lambda: now[0])
    await authenticate(key.secret)
    found: dict[str, Any] = {"asked": 0}

    async def gone(digest: str) -> None:
        found["asked"] += 1

    async def nothing(digest: str) -> None:
        del digest

    authenticate.keys = cast(KeyStore, SimpleNamespace(find=gone, over=nothing))
    assert (await authenticate(key.secret)).tenant is TENANT
    now[0] = 1.1
    with pytest.raises(Unauthenticated):
        await authenticate(key.secret)
    assert found["asked"] == 1


@pytest.mark.parametrize(
    "service, scope",
    [(RunService, "run"), (ToolService, "tool"), (ProcessService, "tool"), (WorkspaceService, "files")],
)
def test_each_service_says_its_scope(service: type[Any], scope: str) -> None:
    assert service.scope == scope
    assert issubclass(ScopeMissing, AirlockError)
