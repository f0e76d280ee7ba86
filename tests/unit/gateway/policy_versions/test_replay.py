"""A candidate over recorded calls, on a real journal in a SQLite file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert

from gateway.policy import load_policy
from gateway.policy_versions.replay import CUT, NO_VERDICT, OTHERS, Replayed, replay
from gateway.storage import call_journal as room
from gateway.storage.call_journal import RecordedCall, recorded_calls
from gateway.storage.database import Database
from gateway.storage.tables import runs, threads, tool_calls

CANDIDATE = """\
version: 1
rules:
  - {id: files, tools: [read], paths: [/workspace/**], effect: allow, reason: r}
  - {id: secret, tools: [read], paths: [/workspace/.env], effect: deny, reason: r}
  - {id: ls, tools: [execute], argv: [[ls]], effect: allow, reason: r}
  - {id: push, tools: [execute], argv: [[tool, push]], effect: ask, reason: r}
"""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    for tenant in ("a", "b"):
        row = {"id": f"thread_{tenant}", "tenant": tenant, "name": "main", "created_us": 1}
        await opened.write((insert(threads), row))
    yield opened
    await opened.close()


def call(id_: str, tool: str, arguments: dict[str, Any], verdict: str | None = "allow", **more: Any) -> dict[str, Any]:
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return {
        "id": id_,
        "tenant": "a",
        "thread_id": "thread_a",
        "run_id": None,
        "name": tool,
        "arguments": json.dumps(arguments)[:16_384],
        "arguments_digest": hashlib.sha256(canonical.encode()).hexdigest(),
        "policy_version": "policy_1",
        "state": "finished",
        "verdict": verdict,
        "rule": "before",
        "started_us": 1_000_000,
        "approval_id": None,
        **more,
    }


async def replayed(database: Database, *rows: dict[str, Any], candidate: str = CANDIDATE) -> Replayed:
    await database.write((insert(tool_calls), list(rows)))
    return await replay(load_policy(candidate, "candidate"), recorded_calls(database, 0))


async def test_what_would_be_another_verdict_is_counted_by_rule_with_samples(database: Database) -> None:
    result = await replayed(
        database,
        call("1", "read_file", {"path": "/workspace/a"}),
        call("2", "read_file", {"path": "/workspace/.env"}),
        call("3", "read_file", {"path": "/workspace/.env"}),
        call("4", "execute", {"command": "tool push"}, "deny"),
    )
    assert (result.tally.calls, result.tally.changed) == (4, 3)
    loosened, denied = result.tally.changes
    assert (str(loosened.before), str(loosened.after)) == ("deny by before", "ask by push")
    assert (denied.calls, denied.after.rule) == (2, "secret")
    assert "/workspace/.env" in denied.samples[0]


async def test_a_call_that_was_asked_about_counts_as_asked_whatever_the_answer_was(database: Database) -> None:
    asked = {"command": "tool push"}
    result = await replayed(
        database,
        call("1", "execute", asked, "allow", approval_id="approval_1"),
        call("2", "execute", asked, "deny", rule="approval", approval_id="approval_2"),
        call("3", "execute", asked, "ask"),
    )
    assert (result.tally.calls, result.tally.changed) == (3, 0)


async def test_arguments_that_were_cut_or_changed_are_not_judged(database: Database) -> None:
    long = call("1", "execute", {"command": "ls " + "x" * 20_000})
    changed = call("2", "execute", {"command": "ls"}) | {"arguments": '{"command": "rm"}'}
    no_json = call("3", "execute", {}) | {"arguments": "not JSON"}
    deep = call("4", "execute", {}) | {"arguments": "[" * 16_000}
    result = await replayed(database, long, changed, no_json, deep)
    assert result.tally.calls == 0
    assert result.skipped == {CUT: 4}


async def test_calls_without_a_verdict_or_with_anothers_are_not_judged(database: Database) -> None:
    result = await replayed(
        database,
        call("1", "execute", {"command": "ls"}, None),
        call("2", "execute", {"command": "ls"}, "deny", rule="quota"),
    )
    assert result.skipped == {NO_VERDICT: 1, OTHERS: 1}


async def test_a_call_is_judged_as_of_its_time_and_with_whose_it_was(database: Database) -> None:
    run = {"id": "run_1", "tenant": "a", "thread_id": "thread_a", "agent": "coder", "task": "t"}
    await database.write(
        (insert(runs), run | {"policy_version": "p", "status": "done", "last_sequence": 0, "started_us": 1})
    )
    candidate = """\
version: 1
rules:
  - id: r
    tools: [ls]
    effect: allow
    reason: r
    time: {days: [mon]}
    when: tenant == "a" && thread == "main" && agent == "coder" && run == "run_1"
"""
    monday = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp() * 1e6)
    day = 86_400_000_000
    result = await replayed(
        database,
        call("1", "ls", {"path": "/workspace"}, started_us=monday, run_id="run_1"),
        call("2", "ls", {"path": "/workspace"}, started_us=monday + day, run_id="run_1"),
        candidate=candidate,
    )
    assert (result.tally.calls, result.tally.changed) == (2, 1)


async def test_rules_in_shadow_change_nothing_and_are_counted_apart(database: Database) -> None:
    shadow = "  - {id: dark, tools: [read], effect: deny, reason: r, mode: shadow}\n"
    result = await replayed(database, call("1", "read_file", {"path": "/workspace/a"}), candidate=CANDIDATE + shadow)
    assert result.tally.changed == 0
    (change,) = result.shadow.changes
    assert (str(change.before), str(change.after)) == ("allow by files", "deny by dark")


async def test_the_journal_is_read_in_pages_by_time_and_by_tenant(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_PAGE_ROWS", 3)
    rows = [call(f"{place:02}", "ls", {"path": "/"}, started_us=place // 4) for place in range(20)]
    rows += [call("b", "ls", {"path": "/"}, started_us=5) | {"tenant": "b", "thread_id": "thread_b"}]
    await database.write((insert(tool_calls), rows))

    async def ids(since_us: int, tenant: str | None) -> list[str]:
        found: list[RecordedCall] = [one async for one in recorded_calls(database, since_us, tenant)]
        return [one.id for one in found]

    assert await ids(0, None) == [*(f"{place:02}" for place in range(20)), "b"]
    assert await ids(3, "a") == [f"{place:02}" for place in range(12, 20)]
    assert await ids(0, "b") == ["b"]
    assert await ids(6, None) == []
