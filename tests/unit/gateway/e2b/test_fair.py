"""What one tenant asks of E2B's faces is scheduled as its own work, and keeps no other tenant waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from gateway.config.http_settings import HttpSettings
from gateway.e2b.access import Access, access_token
from gateway.e2b.rest import RestFace
from gateway.http.app import make_app
from gateway.support.current_tenant import CURRENT_TENANT

WAIT_S = 20


class Store:
    """Stands in for the stored sandboxes: notes which tenant each list is read for, and as whose work."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str | None]] = []
        self.slow = asyncio.Event()
        self.sandbox: Any = SimpleNamespace(
            id="i1", tenant="acme", state="running", secret="s", ends_us=None, options={}
        )

    async def page(self, tenant: str, **_about: object) -> list[Any]:
        self.read.append((tenant, CURRENT_TENANT.get()))
        if tenant == "acme":
            await self.slow.wait()
        return []

    async def get(self, _id: str) -> Any:
        return self.sandbox


async def _authenticated(credentials: Any) -> Any:
    named = dict(credentials.metadata).get("authorization", "Bearer acme")
    name = named.removeprefix("Bearer ")
    caller = SimpleNamespace(key_id="key_1", shown=name)
    return SimpleNamespace(tenant=SimpleNamespace(name=name), scopes=("tool", "run"), caller=caller)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def access(store: Store) -> Access:
    services: Any = SimpleNamespace(channel=lambda _origin: None)
    return Access(store, _authenticated, services)  # type: ignore[arg-type]


async def test_the_lists_of_one_tenant_leave_places_for_others(store: Store, access: Access) -> None:
    lifecycle: Any = None
    app = make_app([*RestFace(access, lifecycle).routes("/e2b")], HttpSettings(), loopback=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:

        def listed(tenant: str) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.get("/e2b/v2/sandboxes", headers={"x-api-key": tenant}))

        many = [listed("acme") for _ in range(8)]
        async with asyncio.timeout(WAIT_S):
            assert (await listed("other")).json() == []
        store.slow.set()
        assert [(await one).status_code for one in many] == [200] * 8
    assert {(tenant, as_of) for tenant, as_of in store.read} == {("acme", "acme"), ("other", "other")}


async def test_a_call_with_a_token_is_the_work_of_its_tenant(store: Store, access: Access) -> None:
    token = access_token(store.sandbox, "key_1").encode()
    scope = {"type": "http", "headers": [(b"x-access-token", token)], "client": ("127.0.0.1", 1), "state": {}}
    await access.token_holder(Request(scope), store.sandbox)
    assert CURRENT_TENANT.get() == "acme"
