"""A tool call's arguments are validated, encoded and digested once: the same bytes are judged, recorded and run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution
from agent.tool_call import JudgedCall
from agent.tools.tool import Capability
from agent.tools.toolbox import Toolbox
from gateway.approvals.approver import call_digest
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument, RedactionSection, Rule
from gateway.policy.judge import Policy
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.storage.tables import approvals, audit_records, tool_calls
from gateway.support.heavy_work import HeavyWork
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from tests.unit.gateway.made_parts import made_quotas
from tests.unit.gateway.telemetry.seen import watching
from tests.unit.gateway.tool_calls.test_requested_calls import FullStore, Sandbox

RULES = (
    Rule(id="any", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="push", tools=("execute",), argv=(("git", "push"),), effect="ask", reason="it leaves the sandbox"),
)
TENANT = Tenant(
    "acme", Policy(PolicyDocument(version=1, rules=RULES, redaction=RedactionSection())), ModelSettings(), {}
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is done to arguments, at the one place where each is done."""
    counts: Counter[str] = Counter()

    def spy(of: Any, name: str) -> None:
        real = getattr(of, name)

        def counting(*args: Any, **given: Any) -> Any:
            counts[name] += 1
            return real(*args, **given)

        monkeypatch.setattr(of, name, counting)

    spy(Toolbox, "_validated")
    spy(JudgedCall, "of")
    return counts


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(sqlite_url)
    yield opened
    await opened.close()


def calls_on(database: Database, sandbox: Sandbox | None = None, store: Store | None = None) -> ToolCalls:
    keeper: Any = sandbox or Sandbox()
    return ToolCalls(
        store or Store(database),
        keeper,
        approvals=ApprovalStore(database),
        quotas=made_quotas(database),
        heavy_work=HeavyWork(),
        telemetry=watching().telemetry,
    )


async def test_the_arguments_of_a_call_are_validated_encoded_and_digested_once(
    database: Database, counted: Counter[str]
) -> None:
    finished = await calls_on(database).call(TENANT, NewCall("t", "execute", '{"timeout_s": 5, "command": "true"}'))
    assert finished.result.outcome == "exited"
    assert counted == {"_validated": 1, "of": 1}
    canonical = b'{"command":"true","timeout_s":5}'
    digest = hashlib.sha256(canonical).hexdigest()
    judged = finished.execution.judged
    assert (judged.canonical, judged.digest) == (canonical, digest)
    journaled = (await database.rows(select(tool_calls.c.arguments, tool_calls.c.arguments_digest)))[0]
    assert tuple(journaled) == (canonical.decode(), digest)
    audited = (await database.rows(select(audit_records.c.arguments_digest)))[0]
    assert tuple(audited) == (digest,)


async def test_a_call_that_is_asked_about_is_approved_by_the_digest_of_what_was_judged(
    database: Database, counted: Counter[str]
) -> None:
    finished = await calls_on(database).call(TENANT, NewCall("t", "execute", '{"command": "git push"}'))
    assert finished.execution.waiting
    assert counted == {"_validated": 1, "of": 1}
    row = (await database.rows(select(approvals)))[0]._mapping
    assert json.loads(row["arguments"]) == {"command": "git push"}
    assert row["digest"] == call_digest("acme", finished.execution.judged, TENANT.policy.version)


async def test_rewritten_arguments_are_prepared_once_more_and_those_run(
    database: Database, counted: Counter[str]
) -> None:
    class Rewrites(Hook):
        def __init__(self, priority: int) -> None:
            self.priority = priority

        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.with_arguments({"command": f"echo {self.priority}"})

    sandbox = Sandbox()
    calls = calls_on(database, sandbox)
    path = await calls._tool_path(TENANT, "t")
    rewriting = Capability("rewrites", hooks=(Rewrites(1), Rewrites(0)))
    calls._tool_paths[path.thread.id] = replace(path, build_capabilities=lambda: (*path.capabilities, rewriting))
    finished = await calls.call(TENANT, NewCall("t", "execute", '{"command": "git push"}'))
    assert counted == {"_validated": 2, "of": 2}
    assert finished.execution.call.arguments == {"command": "echo 0"}
    assert finished.execution.judged.canonical == b'{"command":"echo 0"}'
    assert sandbox.began.get_nowait() == "echo 0"


class MakesAgain(Hook):
    """A ring that makes a call again which did not execute, once the database is back."""

    def __init__(self, store: FullStore) -> None:
        self._store = store

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        result = await next_(tool)
        assert result.outcome == "not_executed"
        self._store.full = ()
        return await next_(tool)


async def test_a_call_that_a_ring_makes_again_after_the_database_refused_it_is_recorded_as_executed(
    database: Database,
) -> None:
    store, sandbox = FullStore(database), Sandbox()
    calls = calls_on(database, sandbox, store)
    path = await calls._tool_path(TENANT, "t")
    calls._tool_paths[path.thread.id] = replace(path, hooks=(*path.hooks, MakesAgain(store)))
    store.full = ("begin",)
    finished = await calls.call(TENANT, NewCall("t", "execute", '{"command": "true"}'))
    assert (finished.result.outcome, sandbox.ran) == ("exited", 1)
    rows = await database.rows(select(tool_calls.c.state, tool_calls.c.outcome))
    assert [tuple(row) for row in rows] == [("finished", "exited")]
    audited = await database.rows(select(audit_records.c.outcome))
    assert [row.outcome for row in audited] == ["exited"]
