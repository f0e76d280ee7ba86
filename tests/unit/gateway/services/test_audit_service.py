"""The audit over the wire: the service on a real database, and the Python client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import grpc.aio
import pytest

from airlock.audit import AuditCalls, AuditQuery
from airlock.retry import Retry
from airlock.v1 import audit_service_pb2 as pb
from gateway.audit.audit import Audit
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.errors import InvalidArgument, NotFound, ScopeMissing, Unavailable
from gateway.identity.principal import Context, Principal
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.services.audit_service import AuditService
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.tenancy.tenants import Tenant
from gateway.v1 import audit_service_pb2_grpc

ACME = Tenant("acme", Policy(PolicyDocument(version=1)), ModelSettings(), {})
START = datetime(2026, 5, 1, tzinfo=UTC)


@dataclass
class Served:
    """A client, and who it is taken for."""

    client: AuditCalls
    store: AuditStore
    audit: Audit
    principal: Principal = field(default_factory=lambda: Principal(ACME, Caller("k", "alk_ab.."), ("audit",)))

    async def sequences(self, query: AuditQuery, tenant: str = "") -> list[int]:
        return [record.sequence for record in await self.client.audit(query, tenant=tenant)]


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.open(database_url)
    seconds = iter(range(100_000))
    store = AuditStore(database, lambda: int((START + timedelta(seconds=next(seconds))).timestamp() * 1_000_000))
    audit = Audit(AuditReader(database), ["acme", "other"], poll_s=0.01)

    async def authenticate(context: Context) -> Principal:
        del context
        return found.principal

    server = grpc.aio.server()
    audit_service_pb2_grpc.add_AuditServiceServicer_to_server(AuditService(audit, authenticate), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AuditCalls(f"127.0.0.1:{port}", "alk_x", retry=Retry(resume_s=0.5)) as client:
        found = Served(client, store, audit)
        yield found
    audit.close()
    await server.stop(None)
    await database.close()


async def test_records_are_listed_the_newest_first_and_filtered(served: Served) -> None:
    await served.store.write(
        AuditEntry("acme", "run_started", "ann", thread="a", run_id="r1"),
        AuditEntry("acme", "tool_call", "ann", thread="a", run_id="r1", tool="execute", verdict="deny", rule="no"),
        AuditEntry("acme", "tool_call", "bob", thread="b", tool="ls", verdict="allow", rule="all"),
        AuditEntry("other", "tool_call", "eve"),
        AuditEntry("acme", "run_finished", thread="a", run_id="r1"),
    )
    wanted = {
        AuditQuery(): [4, 3, 2, 1],
        AuditQuery(kinds=("run_started", "run_finished")): [4, 1],
        AuditQuery(thread="b"): [3],
        AuditQuery(run_id="r1", kinds=("tool_call",)): [2],
        AuditQuery(tool="execute"): [2],
        AuditQuery(verdict="allow"): [3],
        AuditQuery(rule="no"): [2],
        AuditQuery(actor="ann"): [2, 1],
        AuditQuery(since=START + timedelta(seconds=2), until=START + timedelta(seconds=4)): [3],
        AuditQuery(actor="eve"): [],
    }
    assert [await served.sequences(query) for query in wanted] == list(wanted.values())
    with pytest.raises(InvalidArgument):
        await served.client.audit(AuditQuery(verdict="maybe"))


async def test_pages_hold_every_record_once_while_others_are_added(served: Served) -> None:
    for n in range(7):
        await served.store.write(AuditEntry("acme", "tool_call", call_id=str(n)))
    stub = audit_service_pb2_grpc.AuditServiceStub(served.client._channel)
    found, token = [], ""
    while True:
        page = await stub.QueryAudit(pb.QueryAuditRequest(page_size=3, page_token=token))
        found += [record.call_id for record in page.records]
        await served.store.write(AuditEntry("acme", "tool_call", call_id="later"))
        token = page.next_page_token
        if not token:
            break
    assert found == ["6", "5", "4", "3", "2", "1", "0"]
    first = await stub.QueryAudit(pb.QueryAuditRequest(page_size=3))
    other = pb.QueryAuditRequest(page_size=3, page_token=first.next_page_token, filter=pb.AuditFilter(tool="ls"))
    for request in (other, pb.QueryAuditRequest(page_token="x"), pb.QueryAuditRequest(page_size=1001)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.QueryAudit(request)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_tail_sends_what_there_is_and_then_what_comes(served: Served) -> None:
    await served.store.write(*(AuditEntry("acme", "tool_call", call_id=str(n)) for n in range(1_203)))
    ended = [record.sequence async for record in served.client.tail_audit(from_sequence=2, follow=False)]
    assert ended == list(range(2, 1_204))
    tail = aiter(served.client.tail_audit(AuditQuery(kinds=("run_started",)), from_sequence=1_000))
    coming = asyncio.ensure_future(anext(tail))
    await served.store.write(AuditEntry("acme", "tool_call"), AuditEntry("acme", "run_started", run_id="r"))
    assert (await coming).run_id == "r"
    ending = asyncio.ensure_future(anext(tail))
    served.audit.close()
    with pytest.raises(Unavailable, match="follow again"):
        await ending


async def test_a_tail_without_a_beginning_sends_only_what_is_new(served: Served) -> None:
    await served.store.write(AuditEntry("acme", "run_started"))
    assert [record async for record in served.client.tail_audit(follow=False)] == []


async def test_what_the_client_is_given_verifies_without_the_gateway(served: Served) -> None:
    await served.store.write(
        *(AuditEntry("acme", "tool_call", duration_us=n * 1_001, details={"n": n}) for n in range(5))
    )
    records = [record async for record in served.client.tail_audit(from_sequence=1, follow=False)]
    assert [record.computed_digest() for record in records] == [record.digest for record in records]
    assert {record.tenant for record in records} == {"acme"}


async def test_a_chain_is_verified_against_a_digest_that_was_noted(served: Served) -> None:
    await served.store.write(*(AuditEntry("acme", "tool_call") for _ in range(3)))
    report = await served.client.verify_audit()
    assert (report.whole, report.records, report.first_sequence, report.last_sequence) == (True, 3, 1, 3)
    await served.store.write(AuditEntry("acme", "tool_call"))
    assert (await served.client.verify_audit(known=(3, report.last_digest))).whole
    other = await served.client.verify_audit(known=(3, "0" * 64))
    assert (other.whole, other.broken_sequence) == (False, 3)
    with pytest.raises(InvalidArgument):
        await served.client.verify_audit(known=(3, ""))


async def test_a_tenant_reads_its_own_chain_and_no_other_whether_it_is_there_or_not(served: Served) -> None:
    await served.store.write(AuditEntry("acme", "run_started"), AuditEntry("other", "run_started"))
    assert await served.sequences(AuditQuery(), "acme") == [1]
    answers = []
    for tenant in ("other", "nobody"):
        with pytest.raises(NotFound) as raised:
            await served.client.audit(tenant=tenant)
        answers.append(str(raised.value).replace(tenant, "X"))
        with pytest.raises(NotFound):
            await served.client.verify_audit(tenant=tenant)
        with pytest.raises(NotFound):
            await anext(aiter(served.client.tail_audit(tenant=tenant)))
    assert answers[0] == answers[1]


async def test_an_operator_says_whose_and_reads_the_operators_own_by_default(served: Served) -> None:
    await served.store.write(AuditEntry("other", "run_started"), AuditEntry("", "key_created", actor="root"))
    served.principal = Principal(None, Caller("k", "alk_op.."), ("operate", "audit"))
    assert [record.kind for record in await served.client.audit()] == ["key_created"]
    assert [record.kind for record in await served.client.audit(tenant="other")] == ["run_started"]
    assert (await served.client.verify_audit(tenant="acme")).records == 0
    for asked in (served.client.audit(tenant="typo"), served.client.verify_audit(tenant="typo")):
        with pytest.raises(NotFound, match="tenant 'typo' is not configured"):
            await asked
    with pytest.raises(NotFound, match="tenant 'typo' is not configured"):
        await anext(aiter(served.client.tail_audit(tenant="typo")))


async def test_a_key_without_the_scope_reads_nothing(served: Served) -> None:
    served.principal = Principal(ACME, Caller("k", "alk_ab.."), ("run", "tool", "files", "approve"))
    with pytest.raises(ScopeMissing):
        await served.client.audit()
    with pytest.raises(ScopeMissing):
        await served.client.verify_audit()
    with pytest.raises(ScopeMissing):
        await anext(aiter(served.client.tail_audit()))
