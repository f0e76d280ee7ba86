"""Deletions that meet calls and runs, on real databases: no effect without a record, and nothing without an owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Table, func, select

from gateway.config.model_settings import ModelSettings
from gateway.data_lifecycle.erasure import Erasure
from gateway.errors import NotFound, ThreadBusy, Unavailable
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.storage.call_journal import is_of_deletion
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.erasure_store import ErasureStore, belongs_to_tenant
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import audit_records, metadata, threads, tool_calls
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from sandbox.errors import SandboxBusy
from sandbox.protocols import ExecResult
from tests.unit.gateway.made_parts import made_tool_calls

TENANT = Tenant(
    "t",
    Policy(
        PolicyDocument(
            version=1,
            rules=(
                Rule(id="no", tools=("execute",), argv=(("rm",),), effect="deny", reason="a test"),
                Rule(id="any", tools=("execute",), effect="allow", reason="a test"),
            ),
        )
    ),
    ModelSettings(),
    {},
)


class Sandboxes:
    """A keeper whose one sandbox is made only once it may be, and counts how often it was leased."""

    def __init__(self) -> None:
        self.leased = 0
        self.asked = asyncio.Event()
        self.may_be_made = asyncio.Event()
        self.may_be_made.set()

    @asynccontextmanager
    async def acquire(self, spec: Any) -> AsyncIterator[Sandboxes]:
        del spec
        self.asked.set()
        await self.may_be_made.wait()
        self.leased += 1
        yield self

    @property
    def shell(self) -> Sandboxes:
        return self

    def take_ended_processes(self) -> int:
        return 0

    async def execute(self, command: str, **given: Any) -> ExecResult:
        del command, given
        return ExecResult("exited", exit_code=0)


class Files:
    """What removes files; `meanwhile` is awaited as they are about to go."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    async def remove(self, tenant: str, thread: str) -> bool:
        assert tenant == "t"
        if self.meanwhile:
            await self.meanwhile.pop()()
        self.removed.append(thread)
        return True

    async def engine_id(self) -> str:
        return "here"

    async def remove_rest(self, tenant: str) -> int:
        return 0

    async def left_of(self, tenant: str) -> dict[str, int]:
        return {}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def sandboxes() -> Sandboxes:
    return Sandboxes()


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def calls(database: Database, sandboxes: Sandboxes) -> ToolCalls:
    made: ToolCalls = made_tool_calls(database, sandboxes)
    return made


@pytest.fixture
def erasure(database: Database, files: Files) -> Erasure:
    async def no_time(_: float) -> None:
        await asyncio.sleep(0)

    return Erasure(database, ErasureStore(database), files, sleep=no_time)


async def _count(database: Database, table: Table, *where: Any) -> int:
    return int((await database.rows(select(func.count()).select_from(table).where(*where)))[0][0])


async def _audited(database: Database, call_id: str) -> list[str]:
    query = select(audit_records.c.outcome).where(audit_records.c.call_id == call_id)
    return [row.outcome for row in await database.rows(query)]


async def _call(calls: ToolCalls, command: str = "true") -> FinishedToolCall:
    return await calls.call(TENANT, NewCall("a", "execute", {"command": command}))


async def test_a_call_that_waits_for_its_sandbox_keeps_its_thread(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, files: Files, erasure: Erasure
) -> None:
    sandboxes.may_be_made.clear()
    calling = asyncio.create_task(_call(calls))
    await sandboxes.asked.wait()
    with pytest.raises(ThreadBusy, match="busy with tool calls"):
        await erasure.thread("t", "a", "key")
    assert files.removed == []
    sandboxes.may_be_made.set()
    finished = await calling
    assert finished.result.outcome == "exited"
    assert await _audited(database, finished.execution.call.id) == ["exited"]
    await erasure.thread("t", "a", "key")
    assert files.removed == ["a"]


async def test_a_call_that_comes_while_files_go_is_not_made_and_the_next_has_a_thread_of_its_own(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, files: Files, erasure: Erasure
) -> None:
    await _call(calls)
    refused: list[Unavailable] = []

    async def call() -> None:
        with pytest.raises(Unavailable, match="being deleted") as caught:
            await _call(calls)
        refused.append(caught.value)

    files.meanwhile = [call]
    removed = await erasure.thread("t", "a", "key")
    assert (files.removed, sandboxes.leased, removed["threads"]) == (["a"], 1, 1)
    assert refused[0].details["outcome"] == "not_executed"
    assert await _audited(database, refused[0].details["call_id"]) == ["not_executed"]
    finished = await _call(calls)
    assert await _audited(database, finished.execution.call.id) == ["exited"]


@pytest.mark.parametrize("command", ["true", "rm x"])
async def test_a_call_in_a_thread_that_another_gateway_has_deleted_is_not_made_and_the_next_one_is(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, erasure: Erasure, command: str
) -> None:
    await _call(calls)
    await erasure.thread("t", "a", "key")
    with pytest.raises(Unavailable, match="make the call again"):
        await _call(calls, command)
    assert sandboxes.leased == 1
    finished = await _call(calls)
    assert await _audited(database, finished.execution.call.id) == ["exited"]


async def test_a_run_does_not_begin_where_files_go(
    database: Database, calls: ToolCalls, files: Files, erasure: Erasure
) -> None:
    thread, store = await calls.thread(TENANT, "a"), Store(database)

    async def start() -> None:
        with pytest.raises(ConstraintViolated) as caught:
            await store.add_run(thread, NewRun(agent="a", task="x", policy_version="p"))
        assert is_of_deletion(caught.value)

    files.meanwhile = [start]
    await erasure.thread("t", "a", "key")
    with pytest.raises(ConstraintViolated) as caught:
        await store.add_run(thread, NewRun(agent="a", task="x", policy_version="p"))
    assert is_of_deletion(caught.value)


async def test_a_deletion_that_is_given_up_leaves_the_thread_of_use(
    database: Database, calls: ToolCalls, files: Files, erasure: Erasure
) -> None:
    await _call(calls)

    async def fail() -> None:
        raise SandboxBusy("in use")

    files.meanwhile = [fail]
    with pytest.raises(ThreadBusy):
        await erasure.thread("t", "a", "key")
    assert (await _call(calls)).result.outcome == "exited"
    assert await _count(database, threads, threads.c.deletion.is_not(None)) == 0


async def test_a_deletion_that_is_cut_short_may_have_removed_files_and_is_only_to_be_done_again(
    calls: ToolCalls, files: Files, erasure: Erasure
) -> None:
    await _call(calls)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    files.meanwhile = [cancelled]
    with pytest.raises(asyncio.CancelledError):
        await erasure.thread("t", "a", "key")
    with pytest.raises(Unavailable, match="being deleted"):
        await _call(calls)
    await erasure.thread("t", "a", "key")
    assert (await _call(calls)).result.outcome == "exited"


async def test_a_deletion_whose_process_was_killed_is_done_by_the_next_and_until_then_nothing_begins(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, files: Files, erasure: Erasure
) -> None:
    await _call(calls)
    await ErasureStore(database).begin("t", "a", "del_killed")
    with pytest.raises(Unavailable, match="being deleted"):
        await _call(calls)
    await erasure.thread("t", "a", "key")
    assert (files.removed, sandboxes.leased) == (["a"], 1)


async def test_of_two_deletions_at_once_one_removes_and_gives_nothing_free_for_the_other(
    database: Database, calls: ToolCalls, files: Files, erasure: Erasure
) -> None:
    await _call(calls)
    other = ErasureStore(database)
    files.meanwhile = [lambda: other.begin("t", "a", "del_other")]
    with pytest.raises(ThreadBusy, match="another call is deleting"):
        await erasure.thread("t", "a", "key")
    with pytest.raises(Unavailable, match="being deleted"):
        await _call(calls)
    assert await other.remove_thread("t", "a", "key", "del_other")
    await _call(calls)
    files.meanwhile = [lambda: erasure.thread("t", "a", "key")]
    with pytest.raises(NotFound):
        await erasure.thread("t", "a", "key")
    assert await _count(database, threads) == 0


async def test_calls_and_deletions_all_at_once_leave_no_call_without_a_record(
    database: Database, calls: ToolCalls, erasure: Erasure
) -> None:
    answered: list[str] = []
    over = asyncio.Event()

    async def delete() -> None:
        while not over.is_set():
            try:
                await erasure.thread("t", "a", "key")
            except (ThreadBusy, NotFound):
                await asyncio.sleep(0)

    deleting = [asyncio.create_task(delete()) for _ in range(2)]
    for _ in range(40):
        try:
            answered.append((await _call(calls)).execution.call.id)
        except Unavailable:
            continue
    over.set()
    await asyncio.gather(*deleting)
    assert [await _audited(database, id_) for id_ in answered] == [["exited"]] * len(answered)


async def test_a_call_that_outlives_the_deletion_of_its_tenant_is_audited_and_its_result_withheld(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, erasure: Erasure
) -> None:
    sandboxes.may_be_made.clear()
    calling = asyncio.create_task(_call(calls))
    await sandboxes.asked.wait()
    erased = await erasure.tenant("t", False, "operator")
    sandboxes.may_be_made.set()
    with pytest.raises(Unavailable, match="deleted or restored while") as caught:
        await calling
    assert caught.value.details["outcome"] == "withheld"
    assert await _audited(database, caught.value.details["call_id"]) == ["interrupted"]
    assert {table for table, left in erased.left.items() if left} == {"audit_records", "audit_heads"}
    for table in metadata.sorted_tables:
        belongs = belongs_to_tenant(table, "t")
        if belongs is not None and not table.name.startswith("audit"):
            assert await _count(database, table, belongs) == 0, table.name


async def test_a_tenants_deletion_waits_for_its_calls_and_lets_none_begin(
    database: Database, calls: ToolCalls, sandboxes: Sandboxes, files: Files
) -> None:
    sandboxes.may_be_made.clear()
    calling = asyncio.create_task(_call(calls))
    await sandboxes.asked.wait()
    looked: list[list[str]] = []

    async def look(_: float) -> None:
        looked.append(list(files.removed))
        with pytest.raises(Unavailable, match="being deleted"):
            await _call(calls)
        sandboxes.may_be_made.set()
        await calling

    await Erasure(database, ErasureStore(database), files, sleep=look).tenant("t", False, "operator")
    assert looked == [[]]
    assert calling.result().result.outcome == "exited"
    assert await _count(database, tool_calls) == 0
