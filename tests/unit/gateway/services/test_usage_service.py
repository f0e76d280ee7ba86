"""Usage over the wire: who reads whose, in which groups; the service on a real database, and the Python client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import grpc.aio
import pytest

from agent.messages import Usage
from airlock.usage import Usage as Shown
from airlock.usage import UsageCalls, UsageTotal
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.errors import InvalidArgument, NotFound, ScopeMissing
from gateway.identity.principal import Context, Principal
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.services import usage_service
from gateway.services.usage_service import UsageService
from gateway.storage.database import Database
from gateway.storage.run_writes import Claim, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.storage.usage_store import RunUse, UsageStore, Used
from gateway.tenancy.tenants import Tenant
from gateway.v1 import usage_service_pb2_grpc

ACME = Tenant("acme", Policy(PolicyDocument(version=1)), ModelSettings(), {})
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
USED = Used(2, Usage(input_tokens=100, cached_input_tokens=60))
SHOWN = Shown(2, 100, 60)
OPERATOR = Principal(None, Caller("o", "alk_op.."), ("operate", "audit"))


def tenant_with(*scopes: str) -> Principal:
    return Principal(ACME, Caller("k", "alk_ab.."), scopes)


@dataclass
class Served:
    """A client, and who it is taken for."""

    client: UsageCalls
    database: Database
    principal: Principal = field(default_factory=lambda: tenant_with("run"))

    async def use(self, tenant: str, at: datetime, *uses: RunUse) -> None:
        store = Store(self.database, lambda: round(at.timestamp() * 1e6))
        thread = await store.thread(tenant, f"at {at}")
        run = await store.add_run(thread, NewRun(agent="default", task="x", policy_version="p"))
        await store.write_run(Claim(run.id), RunWrite(used=(tenant, uses)))


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.open(database_url)

    async def authenticate(context: Context) -> Principal:
        del context
        return found.principal

    server = grpc.aio.server()
    service = UsageService(UsageStore(database), ["acme", "quiet"], authenticate)
    usage_service_pb2_grpc.add_UsageServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with UsageCalls(f"127.0.0.1:{port}", "alk_x", retry=None) as client:
        found = Served(client, database)
        await found.use("acme", NOON - DAY, RunUse("default", "m", USED))
        await found.use("acme", NOON, RunUse("default", "m", USED), RunUse("helper", "n", USED))
        await found.use("gone", NOON, RunUse("default", "m", USED))
        yield found
    await server.stop(None)
    await database.close()


async def test_a_tenant_reads_its_own_usage_in_groups(served: Served) -> None:
    twice, thrice = Shown(4, 200, 120), Shown(6, 300, 180)
    assert await served.client.usage() == [UsageTotal(None, "", "", thrice)]
    assert await served.client.usage(tenant="acme", by=["model"]) == [
        UsageTotal(None, "m", "", twice),
        UsageTotal(None, "n", "", SHOWN),
    ]
    midnight = NOON.replace(hour=0)
    assert await served.client.usage(by=["agent", "day"]) == [
        UsageTotal(midnight - DAY, "", "default", SHOWN),
        UsageTotal(midnight, "", "default", SHOWN),
        UsageTotal(midnight, "", "helper", SHOWN),
    ]


async def test_days_are_whole(served: Served) -> None:
    assert [one.usage for one in await served.client.usage(since=NOON + timedelta(hours=6))] == [Shown(4, 200, 120)]
    assert [one.usage for one in await served.client.usage(until=NOON.replace(hour=0))] == [SHOWN]
    assert await served.client.usage(since=NOON + DAY) == []


async def test_no_tenant_reads_another_s_usage(served: Served) -> None:
    for other in ("gone", "quiet", "nobody"):
        with pytest.raises(NotFound, match="cannot read the usage"):
            await served.client.usage(tenant=other)
    served.principal = tenant_with("tool", "files", "audit")
    with pytest.raises(ScopeMissing, match="needs run"):
        await served.client.usage()


async def test_an_operator_reads_any_tenant_s_usage_also_of_one_that_is_no_longer_configured(served: Served) -> None:
    served.principal = OPERATOR
    assert [one.usage for one in await served.client.usage(tenant="gone")] == [SHOWN]
    assert await served.client.usage(tenant="quiet") == []
    with pytest.raises(NotFound, match="check the name"):
        await served.client.usage(tenant="nobody")
    with pytest.raises(InvalidArgument, match="names the tenant"):
        await served.client.usage()
    served.principal = Principal(None, OPERATOR.caller, ("audit",))
    with pytest.raises(ScopeMissing, match="needs operate"):
        await served.client.usage(tenant="acme")


async def test_too_many_totals_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_service, "_ROWS_LIMIT", 2)
    assert len(await served.client.usage(by=["model"])) == 2
    with pytest.raises(InvalidArgument, match="fewer days"):
        await served.client.usage(by=["day", "model"])
