"""The counts that the model calculates with are those of the code: who changes one of them changes docs/capacity.md."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, update

from gateway.client import Client
from gateway.config.operation_settings import AdmissionSettings, RecoverySettings
from gateway.policy_versions import policies
from gateway.runs import lease, waiting_runs
from gateway.serving import health
from gateway.storage import connecting, waiting_store, writer
from gateway.storage.database import Database
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import runs
from gateway.storage.waiting_store import LeaseStore, WaitingRun, WaitingStore
from gateway.support.clock import make_id
from sandbox.engines.pooled_sandbox import PoolKind
from tests.bench.changed_gateway import changed_by
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes
from tests.gateway_process import make_home, served
from tests.integration.sandbox.live_engine import spec
from tests.kubernetes.requests import Target
from tests.simulation import counted_gateway, gateways, takeover
from tests.simulation.costs import (
    CLAIM_WRITES,
    CONNECTIONS,
    CREATION_WRITES,
    GATE_WRITES,
    GROUP_LIMIT,
    IDLE_READS_PER_S,
    READS_OF_CALL,
    RENEWALS_OF_A_LEASE,
    ROWS_OF,
    WRITES_OF,
    Statements,
)
from tests.simulation.written_calls import ENDED, call_entry, call_row

_NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
_WRITING = {"execute": {"command": "true"}, "write_file": {"path": "page", "content": "x" * 4096}}
_READING = {"read_file": {"path": "page"}}
_CHANGES = ("insert ", "update ", "delete ")
_IDLE_READS = {"select policy_changes", "select gateways", "select settings", "select approvals"}
_IDLE_S = 3.0


@contextlib.asynccontextmanager
async def _counted(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Client, Path]]:
    """Have a gateway whose statements are noted, with one sandbox."""
    home, notes = make_home(tmp_path / "home"), tmp_path / "statements"
    home.configure(sandbox={"engine": "memory"})
    home.store_in(database_url)
    environment = {**_NO_DOCKER, counted_gateway.STATEMENTS_FILE: str(notes)}
    with changed_by("tests.simulation.counted_gateway"), served(home, environment) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("t", "/workspace/page", b"x" * 4096)
            yield client, notes


async def test_calls_and_an_idle_gateway_write_and_read_as_often_as_the_model_has_it(
    database_url: str, tmp_path: Path
) -> None:
    async with _counted(database_url, tmp_path) as (client, notes):
        for kind, tools in (("writing", _WRITING), ("reading", _READING)):
            for tool, arguments in tools.items():
                sent = await _of_each_call(client, notes, tool, arguments)
                assert sent["commit"] == WRITES_OF[kind], (tool, sent)
                changes = sum(count for what, count in sent.items() if what.startswith(_CHANGES))
                assert changes == ROWS_OF[kind], (tool, sent)
                # The head of the audit's chain is read under the lock.
                reads = sum(count for what, count in sent.items() if what.startswith("select "))
                assert reads - sent["select audit_heads"] == READS_OF_CALL, (tool, sent)
        began_ns = time.perf_counter_ns()
        await asyncio.sleep(_IDLE_S)
        sent = Counter(one.what for one in counted_gateway.read(notes) if one.at_ns >= began_ns)
    reads_of = {what: count for what, count in sent.items() if what.startswith("select ")}
    assert reads_of.keys() <= _IDLE_READS, reads_of
    assert {what for what in sent if what.startswith(_CHANGES)} <= {"update gateways"}, sent
    # A slow machine does all of it less often.
    assert sum(reads_of.values()) <= 1.3 * _IDLE_S * sum(IDLE_READS_PER_S.values()), reads_of


async def _of_each_call(client: Client, notes: Path, tool: str, arguments: dict[str, str]) -> Counter[str]:
    windows = []
    for number in range(9):
        began_ns = time.perf_counter_ns()
        result = await client.call_tool(tool, arguments, thread="t")
        assert not result.is_error, result
        if number >= 3:  # what is looked up once is known by then
            windows.append((began_ns, time.perf_counter_ns()))
    return counted_gateway.of_each(counted_gateway.read(notes), windows)


def test_the_model_has_the_intervals_and_limits_of_the_code() -> None:
    assert policies._FOLLOW_S * IDLE_READS_PER_S["policies"] == 1
    assert IDLE_READS_PER_S["unhosted runs"] == 2 / waiting_runs._POLL_S
    assert IDLE_READS_PER_S["health"] == 1 / health._DATABASE_EVERY_S
    assert IDLE_READS_PER_S["approvals"] == 1 / waiting_runs._EXPIRE_EVERY_S
    assert RENEWALS_OF_A_LEASE == lease._RENEWALS
    assert RENEWALS_OF_A_LEASE / RecoverySettings().lease_s == IDLE_READS_PER_S["expired leases"]
    assert GROUP_LIMIT == writer._GROUP_LIMIT
    assert (takeover._POLL_S, takeover._PAGE) == (waiting_runs._POLL_S, waiting_store._READY_LIMIT)
    assert f"{gateways.LOCK_TIMEOUT_S:.0f}s" == connecting._POSTGRESQL_LIMITS["lock_timeout"]
    admission = AdmissionSettings()
    assert (admission.calls_at_once_per_tenant, admission.queue_per_tenant) == (gateways.AT_ONCE, gateways.QUEUE)
    assert admission.queue_wait_s == gateways.QUEUE_WAIT_S


def test_a_process_has_as_many_connections_as_the_model_has_it() -> None:
    engine = connecting.connect("postgresql://user@host/name")
    pool: Any = engine.pool
    assert pool.size() + pool._max_overflow == CONNECTIONS
    engine.dispose()


# --- what one transaction sends under the lock ---


@dataclass
class Group:
    """Writes that are made one transaction, and what it sends to PostgreSQL from its lock to its commit."""

    database: Database
    sent: list[str] = field(default_factory=list)

    async def count(self, *writes: Any) -> int:
        blocked, free = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def block(_connection: Connection) -> None:
            loop.call_soon_threadsafe(blocked.set)
            free.wait(30)

        first = asyncio.create_task(self.database.transact(block, apart=False))
        await blocked.wait()
        tasks = [asyncio.create_task(write) for write in writes]
        for _ in range(10):
            await asyncio.sleep(0)
        free.set()
        await asyncio.gather(first, *tasks)
        last = len(self.sent) - self.sent[::-1].index(counted_gateway.LOCK)
        return len(self.sent[last:])


@pytest.fixture
async def group(postgres_url: str) -> AsyncIterator[Group]:
    database = await Database.open(postgres_url)
    group = Group(database)
    with _noted(group.sent):
        yield group
    await database.close()


@contextlib.contextmanager
def _noted(sent: list[str]) -> Iterator[None]:
    def executed(_connection: Any, _cursor: Any, text: str, *_more: Any) -> None:
        if threading.current_thread().name == "database-writer":
            sent.append(counted_gateway.what(text) or text)

    def committed(_connection: Connection) -> None:
        if threading.current_thread().name == "database-writer":
            sent.append("commit")

    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", committed)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
        event.remove(Engine, "commit", committed)


async def test_a_group_of_calls_sends_as_many_statements_as_the_model_has_it(group: Group) -> None:
    store = Store(group.database, gateway="gw")
    threads = [await store.thread(tenant, "t") for tenant in ("a", "b")]
    rows = [call_row(threads[number % 2], make_id("call")) for number in range(6)]

    def end(row: dict[str, Any]) -> Any:
        return store.finish_tool_call(row["id"], ENDED, audited=[call_entry(row)])

    begun = await group.count(*(store.write_tool_call(row) for row in rows))
    assert begun == Statements(begun=6).count()
    await group.count(*(end(row) for row in rows[:2]))  # begins the tenants' chains
    ended = await group.count(*(end(row) for row in rows[2:]))
    assert ended == Statements(ended=4, tenants=2).count()
    more = call_row(threads[0], make_id("call"))
    both = await group.count(store.write_tool_call(more), end(more))
    assert both == Statements(begun=1, ended=1).count()


async def test_leases_and_claims_of_runs_send_as_many_statements_as_the_model_has_it(group: Group) -> None:
    leases, store = LeaseStore(group.database), Store(group.database, gateway="gone")
    await leases.take("gw", 5_000_000)
    assert await group.count(leases.take("gw", 5_000_000)) == Statements(short=1).count()
    asked = []
    for name in ("t1", "t2"):
        thread = await store.thread("a", name)
        run = await store.add_run(thread, NewRun(agent="default", task="go on", policy_version=""))
        asked.append(WaitingRun(run.id, thread, None, 0, "gateway_lost"))
    mine, others = (WaitingStore(group.database, gateway=name) for name in ("gw", "other"))
    assert await group.count(*(mine.claim(run) for run in asked)) == Statements(claims=2).count()
    assert await group.count(others.claim(asked[0])) == Statements(short=1).count()
    await group.database.write((update(runs).values(status="completed"), None))


# --- what the API of a cluster gets ---


async def test_claims_and_creations_on_kubernetes_write_as_often_as_the_model_has_it(tmp_path: Path) -> None:
    with cluster_of_sandboxes() as cluster:
        place = ClusterSite(cluster, tmp_path)
        engine = place.engine()
        try:
            await engine.prepare()
            with _written(place) as writes:
                pooled = await engine.pool.make_pooled(PoolKind.of(spec()))
            assert writes == CREATION_WRITES
            with _written(place) as writes:
                assert await engine.pool.claim(pooled, spec("claimed")) is not None
            assert writes == CLAIM_WRITES
            with _written(place) as writes:
                await engine.create(spec("created"))
            assert writes == {**CREATION_WRITES, **GATE_WRITES}
        finally:
            await engine.close()


@contextlib.contextmanager
def _written(place: ClusterSite) -> Iterator[Counter[str]]:
    """Count the requests that write, by the kind of what they write."""
    counts: Counter[str] = Counter()
    served: Any = place.cluster.api.requests

    def noted(verb: Callable[..., Any]) -> Callable[..., Any]:
        def write(target: Target, *more: Any, **named: Any) -> Any:
            counts[target.kind.kind] += target.namespace == place.namespace
            return verb(target, *more, **named)

        return write

    verbs = ("create", "update", "patch", "delete")
    for verb in verbs:
        setattr(served, verb, noted(getattr(served, verb)))
    try:
        yield counts
    finally:
        for verb in verbs:
            delattr(served, verb)
