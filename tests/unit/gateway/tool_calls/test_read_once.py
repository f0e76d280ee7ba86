"""A call that only reads is written once, with its outcome, before its result is seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, select

from agent.messages import ToolResult
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext
from gateway.config.model_settings import ModelSettings
from gateway.errors import Unavailable
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.storage.audit_reader import AuditReader
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.run_writes import Claim
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import threads, tool_calls
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (Rule(id="reads", tools=("read_file",), effect="allow", reason="a test"),)
ACME = Tenant("acme", Policy(PolicyDocument(version=1, rules=RULES)), ModelSettings(), {})
PAGE = '{"path": "/workspace/page"}'


class Reading(ServiceExecutor):
    """Reads for as long as it is not let go."""

    read_only = True

    def __init__(self, content: str = "page") -> None:
        self.content = content
        self.reads = 0
        self.began, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        self.reads += 1
        self.began.set()
        await self.free.wait()
        return ToolResult(content=self.content.encode())


class Refusing(Store):
    """A store whose database can be full."""

    full = False

    async def write_tool_call(self, *given: Any, **more: Any) -> None:
        if self.full:
            raise Unavailable("the database is locked, full or gone: disk full; try again later")
        await super().write_tool_call(*given, **more)


@dataclass
class Gateway:
    """What a process has of calls; `at_hand` is the thread's sandbox."""

    database: Database
    at_hand: object | None = "a sandbox"

    def __post_init__(self) -> None:
        self.store = Refusing(self.database, gateway="gw_test")
        self.calls = made_tool_calls(self.database, store=self.store)
        self.calls.at_hand = lambda tenant, thread: self.at_hand
        self.requested = RequestedCalls(self.calls, self.store)

    async def read(self, reading: Reading, request_id: str = "") -> FinishedToolCall:
        return await self.requested.call(ACME, NewCall("th", "read_file", PAGE, executor=reading), request_id)

    async def states(self) -> list[str]:
        return [row.state for row in await self.database.rows(select(tool_calls.c.state))]

    async def outcomes(self) -> list[str]:
        assert (await AuditReader(self.database).verified("acme")).whole
        return [record.outcome async for record in AuditReader(self.database).chain("acme")]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def _states_during(gateway: Gateway, reading: Reading) -> list[str]:
    """Return the journal's states while a read is under way, and let it end."""
    reading.free.clear()
    call = asyncio.create_task(gateway.read(reading))
    await reading.began.wait()
    states = await gateway.states()
    reading.free.set()
    assert (await call).result.text() == "page"
    return states


async def test_its_one_record_has_the_outcome_and_is_audited(database: Database) -> None:
    gateway = Gateway(database)
    assert await _states_during(gateway, Reading()) == []
    assert await gateway.states() == ["finished"]
    assert await gateway.outcomes() == ["completed"]


async def test_without_a_sandbox_it_is_written_first_for_the_thread_must_not_go_while_one_is_made(
    database: Database,
) -> None:
    gateway = Gateway(database, at_hand=None)
    assert await _states_during(gateway, Reading()) == ["executing"]
    assert await gateway.states() == ["finished"]


async def test_a_result_that_cannot_be_recorded_is_withheld_and_recorded_later(database: Database) -> None:
    gateway, reading = Gateway(database), Reading()
    await gateway.read(reading)
    gateway.store.full = True
    with pytest.raises(Unavailable, match="is withheld"):
        await gateway.read(reading)
    # While an outcome waits, the next one is refused before it reads: outcomes must not pile up.
    with pytest.raises(Unavailable, match="did not run"):
        await gateway.read(reading)
    assert reading.reads == 2
    gateway.store.full = False
    await gateway.calls.late.written()
    assert sorted(await gateway.outcomes()) == ["completed", "completed", "not_executed"]


async def test_a_thread_that_is_deleted_meanwhile_has_no_result(database: Database) -> None:
    gateway, reading = Gateway(database), Reading()
    reading.free.clear()
    call = asyncio.create_task(gateway.read(reading))
    await reading.began.wait()
    await database.write((delete(threads), None))
    reading.free.set()
    with pytest.raises(Unavailable, match="withheld"):
        await call
    assert await gateway.states() == []


async def test_two_gateways_may_both_read_for_one_request_and_give_one_answer(database: Database) -> None:
    first, second = Gateway(database), Gateway(database)
    slow, fast = Reading("what was there first"), Reading("what was there later")
    slow.free.clear()
    call = asyncio.create_task(first.read(slow, "r"))
    await slow.began.wait()
    assert (await second.read(fast, "r")).result.text() == "what was there later"
    slow.free.set()
    assert (await call).result.text() == "what was there later"
    assert (await first.read(slow, "r")).result.text() == "what was there later"
    rows = await database.rows(select(tool_calls.c.state, tool_calls.c.request_id, tool_calls.c.result))
    assert sorted((row.state, row.request_id, row.result is None) for row in rows if row.request_id is None) == [
        ("finished", None, True)
    ]
    assert [row.request_id for row in rows if row.request_id is not None] == ["r"]
    assert await first.outcomes() == ["completed", "completed"]


async def test_a_runs_read_replaces_that_of_an_earlier_attempt_and_is_written_once(database: Database) -> None:
    store = Store(database, gateway="gw_1")
    thread = await store.thread("acme", "th")
    run = await store.add_run(thread, NewRun("agent", "task", "p", id="run_1"))
    claim = Claim(run.id)
    row: dict[str, Any] = {
        "id": "call_1",
        "tenant": "acme",
        "thread_id": thread.id,
        "run_id": run.id,
        "name": "read_file",
        "arguments": "{}",
        "arguments_digest": "0" * 64,
        "policy_version": "p",
        "state": "finished",
        "read_only": True,
    }
    await store.write_tool_call({**row, "started_us": 1, "outcome": "first"}, claim=claim)
    await store.write_tool_call({**row, "started_us": 2, "outcome": "second"}, claim=claim)
    with pytest.raises(ConstraintViolated):
        await store.write_tool_call({**row, "started_us": 2, "outcome": "second"}, claim=claim)
    assert [one.outcome for one in await database.rows(select(tool_calls.c.outcome))] == ["second"]
