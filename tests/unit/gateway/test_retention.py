"""Retention on real databases: what is too old goes, in batches; what is under way or young stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from gateway.config import Config
from gateway.errors import Misconfigured, Unavailable
from gateway.retention import Retention
from gateway.retention_settings import RetentionSettings
from gateway.storage import retention_store
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.retention_store import RetentionStore
from gateway.storage.tables import audit_heads, audit_records, events, runs, threads, tool_calls

HOUR_US = 3600 * 1_000_000
DAY_US = 24 * HOUR_US
NOW = 1000 * DAY_US
ALL = RetentionSettings(events_days=10, tool_calls_days=10, audit_days=10)


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(retention_store, "_BATCH_ROWS", 3)
    monkeypatch.setattr(retention_store, "_RUNS_AT_ONCE", 2)
    opened = await Database.open(database_url)
    for n in range(4):
        row = {"id": f"thread{n}", "tenant": "t", "name": f"n{n}", "created_us": 1}
        await opened.write((insert(threads), row))
    yield opened
    await opened.close()


def _retention(database: Database, settings: RetentionSettings = ALL) -> Retention:
    return Retention(RetentionStore(database, lambda: NOW), settings, lambda: NOW)


async def _add_run(database: Database, n: int, status: str, days_ago: float, sequences: int = 8) -> None:
    at = NOW - round(days_ago * DAY_US)
    run = {
        "id": f"run{n}",
        "tenant": "t",
        "thread_id": f"thread{n}",
        "agent": "a",
        "task": "x",
        "policy_version": "p",
        "status": status,
        "last_sequence": sequences,
        "started_us": at,
        "finished_us": at if status not in {"running", "waiting"} else None,
    }
    told = [
        {"run_id": f"run{n}", "sequence": m + 1, "type": "x", "at_us": at, "payload": "{}"} for m in range(sequences)
    ]
    await database.write((insert(runs), run), (insert(events), told))


async def _add_call(database: Database, id_: str, days_ago: float, *, over: bool = True, **more: object) -> None:
    at = NOW - round(days_ago * DAY_US)
    call = {
        "id": id_,
        "tenant": "t",
        "thread_id": "thread0",
        "name": "execute",
        "arguments": "{}",
        "arguments_digest": "d",
        "policy_version": "p",
        "state": "finished" if over else "executing",
        "started_us": at,
        "finished_us": at if over else None,
    }
    await database.write((insert(tool_calls), call | more))


async def _calls(database: Database) -> list[str]:
    return [row.id for row in await database.rows(select(tool_calls.c.id).order_by(tool_calls.c.id))]


async def test_of_an_old_run_the_last_event_stays_and_of_others_all(database: Database) -> None:
    for n, (status, days_ago) in enumerate([("completed", 11), ("failed", 30), ("completed", 9), ("waiting", 90)]):
        await _add_run(database, n, status, days_ago)
    assert (await _retention(database).prune())["events"] == 14
    found = await database.rows(select(events.c.run_id, events.c.sequence).order_by(events.c.run_id, events.c.sequence))
    left = [tuple(row) for row in found]
    assert left == [("run0", 8), ("run1", 8)] + [(f"run{n}", m) for n in (2, 3) for m in range(1, 9)]
    assert (await _retention(database).prune())["events"] == 0


async def test_old_calls_go_but_for_those_of_runs_that_go_on(database: Database) -> None:
    await _add_run(database, 1, "running", 90)
    await _add_run(database, 2, "completed", 90)
    for n in range(7):
        await _add_call(database, f"old{n}", 11)
    await _add_call(database, "of a run", 11, run_id="run2")
    await _add_call(database, "of a run that goes on", 90, run_id="run1")
    await _add_call(database, "under way", 90, over=False)
    await _add_call(database, "young", 9)
    assert (await _retention(database).prune())["tool_calls"] == 8
    assert await _calls(database) == ["of a run that goes on", "under way", "young"]


async def test_a_call_whose_request_id_is_promised_stays_however_soon_calls_go(database: Database) -> None:
    promised = {"request_id": "r1", "request_digest": "d", "result": "{}"}
    await _add_call(database, "promised", 0.9, **promised)
    await _add_call(database, "without", 0.9)
    await _add_call(database, "forgotten", 1.1, **promised | {"request_id": "r2"})
    assert (await _retention(database, RetentionSettings(tool_calls_days=0.5)).prune())["tool_calls"] == 2
    assert await _calls(database) == ["promised"]
    assert await RetentionStore(database, lambda: NOW + DAY_US).prune_tool_calls(NOW) == 1


async def test_results_are_forgotten_after_hours_and_the_calls_stay(database: Database) -> None:
    for n, hours in enumerate([25, 26, 27, 28, 23]):
        await _add_call(database, f"c{n}", hours / 24, request_id=f"r{n}", request_digest="d", result="{}")
    await _add_call(database, "c5", 2, over=False, request_id="r5", request_digest="d")
    assert await _retention(database, RetentionSettings()).prune() == {"request_results": 4}
    found = await database.rows(select(tool_calls.c.request_id, tool_calls.c.result).order_by(tool_calls.c.id))
    assert [tuple(row) for row in found] == [(None, None)] * 4 + [("r4", "{}"), ("r5", None)]


async def test_an_audit_that_was_pruned_is_whole_and_says_what_went(database: Database) -> None:
    for tenant, days in (("t", [30, 20, 11, 9, 1]), ("u", [2, 1])):
        for days_ago in days:
            at = NOW - days_ago * DAY_US
            await AuditStore(database, lambda at=at: at).write(AuditEntry(tenant, "run_started"))
    assert (await _retention(database).prune())["audit_records"] == 3
    found = await database.rows(select(audit_records.c.tenant, audit_records.c.sequence, audit_records.c.kind))
    assert sorted(tuple(row) for row in found) == [
        ("t", 4, "run_started"),
        ("t", 5, "run_started"),
        ("t", 6, "audit_pruned"),
        ("u", 1, "run_started"),
        ("u", 2, "run_started"),
    ]
    first = await database.rows(select(audit_heads.c.first_sequence).order_by(audit_heads.c.tenant))
    assert [row.first_sequence for row in first] == [4, 1]
    assert (await _retention(database).prune())["audit_records"] == 0
    assert (await AuditReader(database).verified("t")).whole


async def test_nothing_goes_that_nobody_asked_to_go(database: Database) -> None:
    await _add_run(database, 1, "completed", 900)
    await _add_call(database, "old", 900)
    assert await _retention(database, RetentionSettings()).prune() == {"request_results": 0}


async def test_gateways_that_prune_at_once_take_everything_once(database: Database) -> None:
    for n in range(4):
        await _add_run(database, n, "completed", 11, sequences=20)
    both = await asyncio.gather(*(_retention(database).prune() for _ in range(2)))
    assert sum(one["events"] for one in both) == 4 * 19


async def test_it_goes_on_after_the_database_refused(database: Database) -> None:
    await _add_call(database, "old", 11)
    store, refusals = RetentionStore(database, lambda: NOW), [Unavailable("full"), ValueError("a fault")]
    real, pruned = store.forget_results, asyncio.Event()

    async def forget_results(before_us: int) -> int:
        if refusals:
            raise refusals.pop()
        pruned.set()
        return await real(before_us)

    store.forget_results = forget_results  # type: ignore[method-assign]
    async with Retention(store, ALL, lambda: NOW).following(look_s=0.001):
        await asyncio.wait_for(pruned.wait(), 30)


async def test_what_a_run_writes_while_it_is_pruned_is_not_lost(database: Database) -> None:
    """A run is taken up no more once it has ended; one that was found and then is under way again keeps its calls."""
    await _add_run(database, 1, "completed", 11)
    await _add_call(database, "call", 11, run_id="run1")
    await database.write((update(runs).values(status="running"), None))
    assert await _retention(database).prune() == {
        "request_results": 0,
        "events": 0,
        "tool_calls": 0,
        "audit_records": 0,
    }


def test_a_bad_length_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "airlock.yaml").write_text(
        "tenants: {t: {policy: t.yaml}}\nretention: {events_days: -1, request_results_hours: 48}\n", encoding="utf-8"
    )
    with pytest.raises(Misconfigured, match=r"retention\.events_days.*retention\.request_results_hours"):
        Config.load(tmp_path / "airlock.yaml")
