"""Long arguments are redacted off the event loop before they are journaled, and a call is recorded even without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import JsonValue

from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, CurrentExecution
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument, RedactionSection, Rule
from gateway.policy.judge import Policy
from gateway.redaction import Redactor
from gateway.redaction.redactor import WITHHELD
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.journal import JournalHook
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_calls import NewCall
from tests.unit.agent.fakes import execution_of
from tests.unit.gateway.made_parts import made_tool_calls
from tests.unit.gateway.redaction.secrets import B64

RULES = (
    Rule(id="all", tools=("write_file",), effect="allow", reason="a test"),
    Rule(id="never", tools=("write_file",), paths=("/workspace/never",), effect="deny", reason="not here"),
)
ACME = Tenant("acme", Policy(PolicyDocument(version=1, rules=RULES, redaction=RedactionSection())), ModelSettings(), {})
TOKEN = "gh" + "p_" + B64[:36]


class Standing(ServiceExecutor):
    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        return ToolResult(b"done", outcome="exited", exit_code=0)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    database = await Database.open(database_url)
    yield Store(database)
    await database.close()


@pytest.mark.parametrize("name, state", [("file", "finished"), ("never", "blocked")])
async def test_long_arguments_are_redacted_off_the_event_loop(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    threads: list[int] = []
    redact = Redactor.json

    def counted(self: Redactor, value: JsonValue) -> JsonValue:
        threads.append(threading.get_ident())
        return redact(self, value)

    monkeypatch.setattr(Redactor, "json", counted)
    database = await Database.open(sqlite_url)
    store = Store(database)
    calls = made_tool_calls(database, store=store)
    for words in (1, 20_000):
        threads.clear()
        arguments = {"path": f"/workspace/{name}", "content": f"{TOKEN}{' word' * words}"}
        finished = await calls.call(ACME, NewCall("t", "write_file", arguments, executor=Standing()))
        row = await store.tool_call("acme", finished.execution.call.id)
        assert row is not None
        assert row["state"] == state
        assert "[redacted github-token]" in row["arguments"]
        assert (set(threads) == {threading.get_ident()}) is (words == 1)
    assert threading.get_ident() not in threads
    await calls.close()
    await database.close()


async def test_a_call_whose_arguments_are_not_redacted_in_time_is_recorded_without_them(store: Store) -> None:
    async def never(function: Callable[..., Any], /, *args: Any) -> Any:
        await asyncio.Event().wait()

    journal = JournalHook(store, await store.thread("acme", "t"), lambda: "p", Redactor(RedactionSection(), never))
    tool = execution_of(ToolCall(id="c", name="execute", arguments={"command": "x" * 100_000}))
    state = AgentState(run_id="c", thread="t", current=CurrentExecution(tool_executions=(tool,), tool_index=0))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(journal.after_tool_use(state.block("policy", "never", "not here")), 0.05)
    await journal.late.close()
    row = await store.tool_call("acme", "c")
    assert row is not None
    assert (row["state"], row["rule"], row["arguments"]) == ("blocked", "never", WITHHELD)
