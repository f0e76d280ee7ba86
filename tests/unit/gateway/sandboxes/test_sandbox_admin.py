"""Sandboxes that a tenant looks after itself, on a real database and an engine that is made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import insert, select

from gateway.config.model_settings import ModelSettings
from gateway.errors import NotFound, QuotaExceeded, ThreadBusy, Unavailable, Unrecorded
from gateway.policy.document import PolicyDocument, QuotasSection
from gateway.policy.judge import Policy
from gateway.sandboxes.port_forwarding import PortForwarding
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.storage.tables import audit_records, runs, threads
from gateway.storage.thread_store import ThreadStore
from gateway.tenancy import quotas
from gateway.tenancy.tenants import Tenant
from sandbox.errors import EngineUnavailable, SandboxBusy
from sandbox.sandbox import ListedSandbox, SandboxSpec
from tests.unit.gateway.made_parts import made_tool_calls

TENANT = Tenant("t", Policy(PolicyDocument(version=1)), ModelSettings(), {})


class FakeEngine:
    """Its sandboxes and workspaces by thread; it makes one where a call asks for it."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, ListedSandbox] = {}
        self.workspaces: set[str] = set()
        self.idle: dict[str, str] = {}
        self.busy = False
        self.made = 0
        self.may_make = asyncio.Event()
        self.may_make.set()
        self.making = asyncio.Event()
        self.failure: Exception | None = None

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        idle = [
            ListedSandbox(id_, thread, "airlock-sandbox", "runc", 1.0, "idle_stopped")
            for thread, id_ in self.idle.items()
        ]
        return [*self.sandboxes.values(), *idle] if tenant == "t" else []

    def stopped(self, spec: SandboxSpec) -> str | None:
        return self.idle.get(spec.thread)

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        was = await self.remove_of(tenant, thread)
        if was is None:
            return None
        self.idle[thread] = was.id
        return replace(was, state="idle_stopped")

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        if self.busy:
            raise SandboxBusy("calls are under way")
        was = next((one for one in await self.listed(tenant) if one.thread == thread), None)
        self.sandboxes.pop(thread, None)
        self.idle.pop(thread, None)
        return was

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        if self.failure is not None:
            raise self.failure
        there = thread in self.workspaces
        self.workspaces.discard(thread)
        return there

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Any]:
        self.making.set()
        await self.may_make.wait()
        if spec.thread not in self.sandboxes:
            self.made += spec.thread not in self.idle
            id_ = self.idle.pop(spec.thread, f"s{self.made}")
            self.sandboxes[spec.thread] = ListedSandbox(id_, spec.thread, spec.image, spec.runtime, 1.0)
            self.workspaces.add(spec.thread)
        yield SimpleNamespace(id=self.sandboxes[spec.thread].id)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    database = await Database.open(sqlite_url)
    yield database
    await database.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def tended(database: Database, engine: FakeEngine) -> SandboxAdmin:
    untyped = cast(Any, engine)
    return SandboxAdmin(untyped, untyped, made_tool_calls(database, engine), ThreadStore(database))


async def records(database: Database) -> list[tuple[str, str, dict[str, Any]]]:
    found = await database.rows(select(audit_records).order_by(audit_records.c.sequence))
    return [(row.kind, row.thread, json.loads(row.details)) for row in found]


async def test_a_sandbox_is_made_once_however_often_it_is_asked_for(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    made = await tended.create(TENANT, "a")
    assert await tended.create(TENANT, "a") == made == await tended.get(TENANT, "a")
    assert engine.made == 1
    details = {"sandbox": "s1", "image": made.image, "runtime": "runc"}
    assert await records(database) == [("sandbox_created", "a", details)]


async def test_who_goes_away_while_it_is_made_leaves_its_record(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    engine.may_make.clear()
    asking = asyncio.create_task(tended.create(TENANT, "a"))
    await engine.making.wait()
    asking.cancel()
    engine.may_make.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [kind for kind, _, _ in await records(database)] == ["sandbox_created"]


async def test_one_that_is_stopped_is_started_and_none_is_made_for_it(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    with pytest.raises(NotFound, match="thread 'a' not found"):
        await tended.resume(TENANT, "a")
    await Store(database).thread("t", "a")
    with pytest.raises(NotFound, match="has no sandbox"):
        await tended.resume(TENANT, "a")
    engine.idle["a"] = "s7"
    resumed = await tended.resume(TENANT, "a")
    assert resumed == await tended.resume(TENANT, "a")
    assert (resumed.id, engine.made) == ("s7", 0)
    assert [kind for kind, _, _ in await records(database)] == ["sandbox_resumed"]


async def test_making_one_counts_in_the_tenants_minute(engine: FakeEngine, tended: SandboxAdmin) -> None:
    policy = Policy(PolicyDocument(version=1, quotas=QuotasSection(tool_calls_per_minute=2)))
    tenant = Tenant("t", policy, ModelSettings(), {})
    for thread in ("a", "b"):
        await tended.create(tenant, thread)
    with pytest.raises(QuotaExceeded):
        await tended.create(tenant, "c")
    assert engine.made == 2


async def test_stopping_and_removing_count_in_the_tenants_minute_as_well(
    engine: FakeEngine, tended: SandboxAdmin
) -> None:
    policy = Policy(PolicyDocument(version=1, quotas=QuotasSection(tool_calls_per_minute=4)))
    tenant = Tenant("t", policy, ModelSettings(), {})
    await tended.create(tenant, "a")
    await tended.stop(tenant, "a")
    await tended.delete(tenant, "a")
    await tended.create(tenant, "b")
    for refused in (tended.stop, tended.delete):
        with pytest.raises(QuotaExceeded):
            await refused(tenant, "b")
    assert set(engine.sandboxes) == engine.workspaces == {"b"}


async def test_past_the_tenants_stored_bytes_sandboxes_are_only_ended(
    database: Database, engine: FakeEngine, tended: SandboxAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stored(_store: QuotaStore, _tenant: str) -> tuple[int, int]:
        return 1, 2000

    @asynccontextmanager
    async def running(_spec: SandboxSpec) -> AsyncIterator[Any]:
        yield SimpleNamespace(network=None)

    tenant = Tenant(
        "t", Policy(PolicyDocument(version=1, quotas=QuotasSection(stored_bytes=2000))), ModelSettings(), {}
    )
    for thread in ("a", "b"):
        await tended.create(TENANT, thread)
    before = await records(database)
    monkeypatch.setattr(QuotaStore, "stored", stored)
    monkeypatch.setattr(quotas, "_STORED_KNOWN_S", -1.0)
    tool_calls, leases = made_tool_calls(database, engine), cast(Any, SimpleNamespace(acquire_existing=running))
    for refused in (
        tended.create(tenant, "c"),
        PortForwarding(leases, tended, tool_calls).connection(tenant, "a", 80).__aenter__(),
    ):
        with pytest.raises(QuotaExceeded) as caught:
            await refused
        assert caught.value.details["quota"] == "stored_bytes"
    assert (engine.made, await records(database)) == (2, before)
    await tended.stop(tenant, "a")
    await tended.delete(tenant, "b")
    assert len(await records(database)) == len(before) + 3


async def test_a_sandbox_goes_with_its_files_and_both_are_reported(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    made = await tended.create(TENANT, "a")
    assert await tended.delete(TENANT, "a") == (made, True)
    assert (engine.sandboxes, engine.workspaces) == ({}, set())
    assert (await records(database))[1:] == [
        ("sandbox_removed", "a", {"sandbox": "s1"}),
        ("workspace_removed", "a", {}),
    ]
    with pytest.raises(NotFound, match="no sandbox and no files"):
        await tended.delete(TENANT, "a")
    with pytest.raises(NotFound, match="no sandbox and no files"):
        await tended.delete(TENANT, "never")
    assert len(await records(database)) == 3


async def test_files_go_also_where_there_is_no_sandbox_and_one_that_is_stopped_goes_with_them(
    engine: FakeEngine, tended: SandboxAdmin
) -> None:
    await tended.create(TENANT, "a")
    stopped = await tended.stop(TENANT, "a")
    assert await tended.delete(TENANT, "a") == (stopped, True)
    await tended.create(TENANT, "b")
    engine.sandboxes.clear()
    assert await tended.delete(TENANT, "b") == (None, True)


async def test_stopping_one_that_is_stopped_is_no_error_and_reported_once(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    assert await tended.stop(TENANT, "a") is None
    made = await tended.create(TENANT, "a")
    stopped = await tended.stop(TENANT, "a")
    assert stopped is not None
    assert (stopped.id, stopped.state) == (made.id, "idle_stopped")
    assert await tended.stop(TENANT, "a") == stopped == await tended.get(TENANT, "a")
    assert (await tended.resume(TENANT, "a")).state == "running"
    kinds = [kind for kind, _, _ in await records(database)]
    assert kinds == ["sandbox_created", "sandbox_stopped", "sandbox_resumed"]


async def test_nothing_is_removed_while_a_call_or_a_run_is_under_way(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    await tended.create(TENANT, "a")
    engine.busy = True
    with pytest.raises(SandboxBusy):
        await tended.delete(TENANT, "a")
    engine.busy = False
    (thread,) = await database.rows(select(threads.c.id))
    run = {"id": "run_1", "tenant": "t", "thread_id": thread.id, "agent": "a", "task": "x", "last_sequence": 0}
    await database.write((insert(runs), run | {"status": "waiting", "policy_version": "p", "started_us": 1}))
    with pytest.raises(ThreadBusy, match="run_1"):
        await tended.delete(TENANT, "a")
    assert set(engine.sandboxes) == engine.workspaces == {"a"}


async def test_what_was_stopped_is_reported_also_where_the_files_could_not_be_removed(
    database: Database, engine: FakeEngine, tended: SandboxAdmin
) -> None:
    await tended.create(TENANT, "a")
    engine.failure = EngineUnavailable("gone")
    with pytest.raises(EngineUnavailable):
        await tended.delete(TENANT, "a")
    assert [kind for kind, _, _ in await records(database)] == ["sandbox_created", "sandbox_removed"]


async def test_one_that_is_gone_as_soon_as_it_is_made_is_an_error_and_not_a_lie(
    engine: FakeEngine, tended: SandboxAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(tenant: str) -> Sequence[ListedSandbox]:
        return []

    monkeypatch.setattr(engine, "listed", nothing)
    with pytest.raises(Unavailable, match="already stopped"):
        await tended.create(TENANT, "a")


async def test_what_is_done_while_the_database_refuses_is_no_retryable_failure_and_is_reported_later(
    database: Database, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    untyped = cast(Any, engine)
    tool_calls = made_tool_calls(database, engine)
    tended = SandboxAdmin(untyped, untyped, tool_calls, ThreadStore(database))
    await tended.create(TENANT, "a")
    refusing = True
    write = AuditStore.write

    async def refused(store: AuditStore, *entries: AuditEntry) -> None:
        if refusing:
            raise Unavailable("the disk is full")
        await write(store, *entries)

    monkeypatch.setattr(AuditStore, "write", refused)
    with pytest.raises(Unrecorded, match=r"sandbox removed, workspace removed.*the disk is full"):
        await tended.delete(TENANT, "a")
    assert not issubclass(Unrecorded, Unavailable)  # which clients ask again for
    assert (engine.sandboxes, engine.workspaces) == ({}, set())
    refusing = False
    await tool_calls.late.written()
    assert [kind for kind, _, _ in await records(database)] == [
        "sandbox_created",
        "sandbox_removed",
        "workspace_removed",
    ]
