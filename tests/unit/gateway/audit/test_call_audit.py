"""What the audit comes to know of tool calls, down the whole way but for the sandbox, on both databases."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from agent.messages import ToolResult
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext
from airlock.audit_chain import AuditRecord
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import CALLER, Caller
from gateway.errors import Unavailable
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.storage.audit_reader import AuditReader
from gateway.storage.database import Database
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.storage.tables import tool_calls
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls import tool_calls as tool_calls_room
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from gateway.tool_calls.tool_request import ToolRequest
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (
    Rule(id="all", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="pushes", tools=("execute",), argv=(("git", "push"),), effect="ask", reason="it leaves the sandbox"),
    Rule(id="never", tools=("execute",), argv=(("rm",),), effect="deny", reason="not here"),
)
ACME = Tenant("acme", Policy(PolicyDocument(version=1, rules=RULES)), ModelSettings(), {})


class Standing(ServiceExecutor):
    """Counts how often the call was made."""

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        self.executed = 0
        self._work = work

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        del call, context
        self.executed += 1
        self._work()
        return ToolResult(content=b"twelve bytes", outcome="exited", exit_code=0)


class Moving(Standing):
    audit_kind = "file_write"
    moved_bytes = 77


@dataclass
class Path:
    """The way of a call on a database that can be taken away."""

    calls: ToolCalls
    database: Database
    refusing: Callable[[], contextlib.AbstractContextManager[None]]

    async def call(self, command: str, standing: Standing | None = None, thread: str = "th") -> Any:
        tools = standing or Standing()
        new = NewCall(thread, "execute", json.dumps({"command": command}), executor=tools)
        return await self.calls.call(ACME, new)

    async def records(self) -> list[AuditRecord]:
        assert (await AuditReader(self.database).verified("acme")).whole
        return [record async for record in AuditReader(self.database).chain("acme")]

    async def states(self) -> list[str]:
        return [
            row.state for row in await self.database.rows(select(tool_calls.c.state).order_by(tool_calls.c.started_us))
        ]


@pytest.fixture
async def path(
    database_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Path]:
    # Else a call is over before it is one, where the database takes longer than this to go away.
    monkeypatch.setattr(tool_calls_room, "_THREAD_KNOWN_S", 600.0)
    quick = "?timeout=0.05" if database_url.startswith("sqlite") else ""
    database = await Database.open(database_url + quick)

    @contextlib.contextmanager
    def refusing() -> Iterator[None]:
        if database_url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as other:
                other.execute("BEGIN IMMEDIATE")
                yield
        else:
            server = request.getfixturevalue("postgres_server")
            server.stop()
            try:
                yield
            finally:
                server.start()

    # What is stored is not counted again while the database is away, however long that takes.
    calls = made_tool_calls(database, quotas=Quotas(QuotaStore(database, "gw_test"), clock=lambda: 10_000_000))
    CALLER.set(Caller("key_1", "alk_ab.."))
    yield Path(calls, database, refusing)
    await calls.close()
    await database.close()


async def test_a_call_is_recorded_with_actor_tool_rule_and_outcome(path: Path) -> None:
    finished = await path.call("true")
    (record,) = await path.records()
    reported = (record.kind, record.actor, record.thread, record.call_id, record.tool)
    assert reported == ("tool_call", "alk_ab..", "th", finished.execution.call.id, "execute")
    assert (record.verdict, record.rule, record.policy_version) == ("allow", "all", ACME.policy.version)
    assert (record.outcome, record.size_bytes, json.loads(record.details)) == ("exited", 12, {"exit_code": 0})
    assert record.duration_us > 0
    canonical = json.dumps({"command": "true"}, sort_keys=True, separators=(",", ":"))
    assert record.arguments_digest == hashlib.sha256(canonical.encode()).hexdigest()


async def test_blocked_calls_and_those_that_wait_are_reported_too(path: Path) -> None:
    await path.call("rm -rf /")
    await path.call("git push")
    blocked, waiting = await path.records()
    assert (blocked.verdict, blocked.rule, blocked.outcome, blocked.duration_us) == ("deny", "never", "blocked", 0)
    assert (waiting.verdict, waiting.rule, waiting.outcome) == ("ask", "pushes", "waiting")
    assert json.loads(waiting.details)["approval_id"]


async def test_neither_arguments_nor_results_nor_reasons_are_in_the_audit(path: Path) -> None:
    await path.call("echo sk-secret-4711")
    await path.call("rm sk-secret-4711")
    lines = [record.line() for record in await path.records()]
    assert len(lines) == 2
    assert not any("secret" in line or "twelve" in line or "not here" in line for line in lines)


async def test_what_was_moved_counts_where_bytes_flow_past(path: Path) -> None:
    await path.call("true", Moving())
    (record,) = await path.records()
    assert (record.kind, record.size_bytes) == ("file_write", 77)


async def test_a_result_that_has_no_record_is_withheld_and_the_record_follows(path: Path) -> None:
    taken = path.refusing()
    standing = Standing(work=taken.__enter__)
    with pytest.raises(Unavailable) as raised:
        await path.call("true", standing)
    assert standing.executed == 1
    taken.__exit__(None, None, None)
    await path.calls.late.written()
    assert await path.states() == ["finished"]
    (record,) = await path.records()
    assert record.call_id == raised.value.details["call_id"]
    assert (record.outcome, record.size_bytes) == ("exited", 12)


async def test_records_that_come_late_keep_their_order_and_come_once(path: Path) -> None:
    await path.call("true", thread="another")  # which needs not be looked up again, as that of the first is
    taken = path.refusing()
    with pytest.raises(Unavailable):
        await path.call("first", Standing(work=taken.__enter__))
    with pytest.raises(Unavailable):
        await path.call("rm second", thread="another")
    taken.__exit__(None, None, None)
    await path.calls.late.written()
    await path.call("true")
    records = await path.records()
    assert [record.outcome for record in records] == ["exited", "exited", "blocked", "exited"]
    assert await path.states() == ["finished", "finished", "blocked", "finished"]


async def test_what_cannot_be_recorded_does_not_execute_and_is_reported_later(path: Path) -> None:
    await path.call("true")
    standing = Standing()
    with path.refusing(), pytest.raises(Unavailable, match="did not run and changed nothing") as raised:
        await path.call("true", standing)
    assert (standing.executed, raised.value.details["outcome"]) == (0, "not_executed")
    await path.calls.late.written()
    ran, refused = await path.records()
    assert (ran.outcome, refused.outcome, refused.verdict) == ("exited", "not_executed", "allow")
    assert refused.call_id == raised.value.details["call_id"]
    assert json.loads(refused.details)["error"].startswith("the database is locked, full or gone")
    assert await path.states() == ["finished", "finished"]


async def test_a_call_whose_beginning_may_have_been_written_is_not_left_executing(path: Path) -> None:
    await path.calls.thread(ACME, "th")
    store = path.calls.store
    written = store.write_tool_call

    async def unheard(row: dict[str, Any], **given: Any) -> None:
        await written(row, **given)
        raise Unavailable("the database was lost in a commit")

    store.write_tool_call = unheard  # type: ignore[method-assign]
    standing, arguments = Standing(), json.dumps({"command": "true"})
    request = ToolRequest.of("r1", "th", "execute", arguments)
    new = NewCall("th", "execute", arguments, executor=standing, request=request)
    with pytest.raises(Unavailable, match="did not run"):
        await path.calls.call(ACME, new)
    assert standing.executed == 0
    assert await path.states() == ["finished"]
    assert await Store(path.database).call_of("acme", "r1") is None
    assert [record.outcome for record in await path.records()] == ["not_executed"]
