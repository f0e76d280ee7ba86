"""Retention on real databases: what is too old goes, in batches; what is under way or young stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Select, delete, insert, select, tuple_, update

from agent.messages import Message
from gateway.config.config import Config
from gateway.config.operation_settings import RetentionSettings
from gateway.data_lifecycle.retention import Retention, TrustedTime
from gateway.errors import Misconfigured, Unavailable
from gateway.storage import queries, retention_store
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.policy_store import Kind, PolicyStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.retention_store import RetentionStore
from gateway.storage.store import Store
from gateway.storage.tables import (
    approvals,
    audit_heads,
    audit_records,
    events,
    grants,
    messages,
    policies,
    runs,
    threads,
    tool_calls,
)
from gateway.storage.thread_store import ThreadStore
from tests.unit.gateway.stored_steps import keep_step

HOUR_US = 3600 * 1_000_000
DAY_US = 24 * HOUR_US
NOW = 1000 * DAY_US
ALL = RetentionSettings(events_days=10, tool_calls_days=10, approvals_days=None, audit_days=10)


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(queries, "BATCH_ROWS", 3)
    monkeypatch.setattr(retention_store, "_RUNS_AT_ONCE", 2)
    opened = await Database.open(database_url)
    for n in range(4):
        row = {"id": f"thread{n}", "tenant": "t", "name": f"n{n}", "created_us": 1}
        await opened.write((insert(threads), row))
    yield opened
    await opened.close()


def _retention(database: Database, settings: RetentionSettings = ALL) -> Retention:
    return Retention(RetentionStore(database, lambda: NOW), settings, TrustedTime(database, lambda: NOW))


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
    reported = [
        {"run_id": f"run{n}", "sequence": m + 1, "type": "x", "at_us": at, "payload": "{}"} for m in range(sequences)
    ]
    await database.write((insert(runs), run), (insert(events), reported))


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
    hourly = RetentionSettings(approvals_days=None)
    assert await _retention(database, hourly).prune() == {"request_results": 4, "sandbox_transitions": 0}
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


async def _ids(database: Database, column: Column[str]) -> list[str]:
    return [row[0] for row in await database.rows(select(column).order_by(column))]


def _old(days: float = 10) -> RetentionSettings:
    return RetentionSettings(runs_days=days, messages_days=days, approvals_days=days, policy_changes_days=days)


async def test_runs_go_with_their_events_once_they_ended_and_what_they_said_stays(database: Database) -> None:
    for n, (status, days_ago) in enumerate([("completed", 11), ("failed", 30), ("completed", 9), ("running", 90)]):
        await _add_run(database, n, status, days_ago)
        await _say(database, n, 1)
    assert (await _retention(database, RetentionSettings(runs_days=10)).prune())["runs"] == 2
    assert await _ids(database, runs.c.id) == ["run2", "run3"]
    assert sorted(set(await _ids(database, events.c.run_id))) == ["run2", "run3"]
    assert len(await _ids(database, messages.c.message)) == 20


async def _say(database: Database, n: int, days_ago: float, count: int = 5) -> None:
    at = NOW - round(days_ago * DAY_US)
    said = [{"thread_id": f"thread{n}", "position": m, "run_id": f"run{n}", "message": "{}"} for m in range(count)]
    used = update(threads).where(threads.c.id == f"thread{n}").values(used_us=at)
    await database.write((insert(messages), said), (used, None))


async def test_what_was_said_goes_as_a_whole_where_no_run_added_to_it_and_none_is_under_way(
    database: Database,
) -> None:
    for n, days_ago in enumerate([11, 9, 11, 30]):
        await _say(database, n, days_ago)
    await _add_run(database, 2, "waiting", 11)
    await _add_run(database, 0, "completed", 11)
    assert (await _retention(database, RetentionSettings(messages_days=10)).prune())["messages"] == 10
    assert sorted(set(await _ids(database, messages.c.thread_id))) == ["thread1", "thread2"]
    assert await _ids(database, threads.c.id) == ["thread0", "thread1", "thread2", "thread3"]


async def test_a_thread_that_a_run_adds_to_or_a_caller_describes_counts_as_used(database: Database) -> None:
    thread = Thread("thread0", "t", "n0")
    await keep_step(
        Store(database, clock=lambda: NOW - DAY_US), thread, "run0", 0, [Message(role="user", content="go on")]
    )
    await _say(database, 1, 30)
    await ThreadStore(database, lambda: NOW - DAY_US).change_metadata(
        Thread("thread1", "t", "n1"), {"a": "1"}, (), keys_limit=9, limit_bytes=99
    )
    assert (await _retention(database, _old()).prune())["messages"] == 0


async def _add_approval(database: Database, id_: str, status: str, days_ago: float, **more: object) -> None:
    at = NOW - round(days_ago * DAY_US)
    texts = ("call_id", "tool", "arguments", "digest", "policy_version", "rule", "reason", "asked")
    row = {"id": id_, "tenant": "t", "thread_id": "thread0", "status": status, **dict.fromkeys(texts, "x")}
    row |= {"arguments_bytes": 1, "created_us": at, "changed_us": at, "expires_us": at + HOUR_US}
    await database.write((insert(approvals), row | more))


async def _grant(database: Database, id_: str, approval: str, **more: object) -> None:
    row = {"id": id_, "tenant": "t", "thread_id": "thread0", "rule": "r", "approval_id": approval, "created_us": 1}
    await database.write((insert(grants), row | more))


async def test_approvals_go_when_they_are_over_but_for_those_whose_run_or_grant_goes_on(database: Database) -> None:
    await _add_run(database, 1, "waiting", 90)
    await _add_run(database, 2, "completed", 90)
    later = {"expires_us": NOW + DAY_US}
    for n, (status, more) in enumerate(
        [("used", {}), ("denied", {}), ("expired", {}), ("cancelled", {}), ("pending", {}), ("approved", {})]
    ):
        await _add_approval(database, f"over{n}", status, 11, **more)
    await _add_approval(database, "of a run that ended", "used", 90, run_id="run2")
    await _add_approval(database, "of a run that waits", "used", 90, run_id="run1")
    await _add_approval(database, "open", "pending", 11, **later)
    await _add_approval(database, "to be used", "approved", 11, **later)
    await _add_approval(database, "young", "used", 9)
    for id_ in ("granted", "granted to an ended run", "taken back"):
        await _add_approval(database, id_, "used", 90)
    await _grant(database, "g1", "granted")
    await _grant(database, "g2", "granted to an ended run", run_id="run2")
    await _grant(database, "g3", "taken back", revoked_us=NOW - 11 * DAY_US)
    await _grant(database, "g4", "granted", run_id="run1")
    pruned = await _retention(database, RetentionSettings(approvals_days=10)).prune()
    assert (pruned["grants"], pruned["approvals"]) == (2, 9)
    assert await _ids(database, grants.c.id) == ["g1", "g4"]
    assert await _ids(database, approvals.c.id) == ["granted", "of a run that waits", "open", "to be used", "young"]


async def test_an_approval_that_a_grant_goes_back_to_stays_without_the_call_it_was_about(database: Database) -> None:
    for id_, days_ago in (("old", 11), ("young", 9)):
        await _add_approval(
            database, id_, "used", days_ago, arguments='{"command": "login s3cret"}', asked='["login s3cret"]'
        )
        await _grant(database, f"g {id_}", id_)
    await _retention(database, RetentionSettings(approvals_days=10)).prune()
    rows = await database.rows(
        select(approvals.c.id, approvals.c.arguments, approvals.c.asked).order_by(approvals.c.id)
    )
    assert [tuple(row) for row in rows] == [
        ("old", "{}", "[]"),
        ("young", '{"command": "login s3cret"}', '["login s3cret"]'),
    ]


async def test_approvals_go_after_thirty_days_unless_the_operator_says_otherwise(database: Database) -> None:
    await _add_approval(database, "old", "used", 31)
    await _add_approval(database, "young", "used", 29)
    await _retention(database, RetentionSettings()).prune()
    assert await _ids(database, approvals.c.id) == ["young"]


async def test_nothing_goes_by_a_clock_that_jumped_ahead_until_it_stood_for_a_day(database: Database) -> None:
    await _add_call(database, "call", 0)
    clock = [NOW]
    retention = Retention(RetentionStore(database, lambda: clock[0]), ALL, TrustedTime(database, lambda: clock[0]))
    assert (await retention.prune())["tool_calls"] == 0
    clock[0] += 400 * DAY_US
    for _ in range(3):
        assert await retention.prune() == {}
        clock[0] += HOUR_US
    assert await _ids(database, tool_calls.c.id) == ["call"]
    # The operator sets the clock right, and it goes on as before.
    clock[0] = NOW + 5 * HOUR_US
    assert (await retention.prune())["tool_calls"] == 0
    clock[0] += HOUR_US
    assert (await retention.prune())["tool_calls"] == 0
    # It was no jump: no gateway ran for that long. After a day of looks the time is trusted.
    clock[0] = NOW + 400 * DAY_US
    for _ in range(24):
        assert await retention.prune() == {}
        clock[0] += HOUR_US
    assert (await retention.prune())["tool_calls"] == 1


async def test_gateways_that_run_now_and_then_prune_once_they_ran_for_a_day(database: Database) -> None:
    await _add_call(database, "call", 0)
    clock = [NOW]
    retention = Retention(RetentionStore(database, lambda: clock[0]), ALL, TrustedTime(database, lambda: clock[0]))
    await retention.prune()
    pruned = []
    for day in (20, 23, 26, 29):  # eight hours every third day
        clock[0] = NOW + day * DAY_US
        for _ in range(9):
            pruned.append((await retention.prune()).get("tool_calls"))
            clock[0] += HOUR_US
    assert pruned.index(1) == 26
    assert set(pruned[:26]) == {None}


async def test_a_gateway_whose_clock_is_wrong_prunes_nothing_beside_one_whose_clock_is_right(
    database: Database,
) -> None:
    await _add_call(database, "call", 0)
    days_ahead = 400 * DAY_US
    for hour in range(48):
        at = NOW + hour * HOUR_US
        for now in (at, at + days_ahead):
            store = RetentionStore(database, lambda now=now: now)  # type: ignore[misc]
            await Retention(store, ALL, TrustedTime(database, lambda now=now: now)).prune()  # type: ignore[misc]
    assert await _ids(database, tool_calls.c.id) == ["call"]


async def test_versions_of_a_policy_go_once_others_took_their_place_and_what_is_in_force_or_pinned_stays(
    database: Database,
) -> None:
    async def apply(tenant: str, text: str, kind: Kind, days_ago: float) -> str:
        store = PolicyStore(database, lambda: NOW - round(days_ago * DAY_US))
        return (await store.apply(tenant, text, kind, "somebody")).digest

    from_file = await apply("t", "from a file", "file", 42)
    edited = await apply("t", "from an edited file", "file", 41)
    gone = await apply("t", "first", "apply", 40)
    pinned = await apply("t", "pinned", "apply", 29)
    shared = await apply("t", "shared", "apply", 28)
    till_yesterday = await apply("t", "till yesterday", "apply", 20)
    now = await apply("t", "in force", "apply", 1)
    await apply("u", "shared", "apply", 400)
    await _add_run(database, 1, "waiting", 29)
    await database.write((update(runs).values(checkpoint=f'{{"policy": ":{pinned}"}}'), None))
    assert (await _retention(database, _old()).prune())["policy_changes"] == 3
    store = PolicyStore(database)
    assert [one.digest for one in await store.history("t", 10)] == [now, till_yesterday, edited, from_file]
    assert [one.digest for one in await store.history("u", 10)] == [shared]
    left = {from_file, edited, pinned, shared, till_yesterday, now}
    assert set(await _ids(database, policies.c.digest)) == left
    assert gone not in left
    assert (await _retention(database, _old()).prune())["policy_changes"] == 0


async def test_what_a_tenant_stores_is_less_by_what_retention_took(database: Database) -> None:
    async def stored() -> tuple[int, int]:
        return await QuotaStore(database, "gw").stored("t")

    before = await stored()
    await _add_run(database, 0, "completed", 90)
    await _say(database, 0, 90)
    await _add_call(database, "call", 90)
    await _add_approval(database, "over", "used", 90)
    assert (await stored())[1] > before[1] + 15 * 256
    await _retention(database, RetentionSettings(**_old().model_dump() | {"tool_calls_days": 10})).prune()
    assert await stored() == before == (4, 0)


async def test_calls_that_did_not_execute_grow_old_as_others_do_and_make_room(database: Database) -> None:
    store, thread = Store(database, clock=lambda: NOW - 11 * DAY_US), Thread(id="thread0", tenant="t", name="n0")
    for n, state in enumerate(["blocked", "waiting", "finished", "executing"]):
        reported = {
            "id": f"c{n}",
            "tenant": thread.tenant,
            "thread_id": thread.id,
            "name": "execute",
            "arguments": "{}",
        }
        row = {**reported, "arguments_digest": "d", "policy_version": "p", "state": state}
        await (store.write_unexecuted_call(row) if state == "finished" else store.write_tool_call(row))
    assert (await _retention(database).prune())["tool_calls"] == 3
    assert await _calls(database) == ["c3"]
    assert (await QuotaStore(database, "gw").stored("t"))[1] == 256 + len("{}")


async def test_by_default_nothing_is_removed(database: Database) -> None:
    await _add_run(database, 1, "completed", 900)
    await _add_call(database, "old", 900)
    nothing = {"request_results": 0, "grants": 0, "approvals": 0, "sandbox_transitions": 0}
    assert await _retention(database, RetentionSettings()).prune() == nothing


async def test_gateways_that_prune_at_once_take_everything_once(database: Database) -> None:
    for n in range(4):
        await _add_run(database, n, "completed", 11, sequences=20)
    both = await asyncio.gather(*(_retention(database).prune() for _ in range(2)))
    assert sum(one["events"] for one in both) == 4 * 19


async def test_a_batch_that_another_gateway_removed_first_does_not_end_a_round(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _add_run(database, 0, "completed", 11, sequences=20)
    real, key = database.rows, tuple_(*events.primary_key.columns)
    removed: list[tuple[Any, ...]] = []

    async def rows(query: Select[Any]) -> Sequence[Any]:
        found = await real(query)
        if len(found) == queries.BATCH_ROWS and not removed and "FROM events" in str(query):
            removed.extend(tuple(row) for row in found)
            await database.write((delete(events).where(key.in_(removed)), None))
        return found

    monkeypatch.setattr(Database, "rows", lambda _, query: rows(query))
    assert (await _retention(database, RetentionSettings(runs_days=10)).prune())["runs"] == 1
    assert len(removed) == queries.BATCH_ROWS


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
    async with Retention(store, ALL, TrustedTime(database, lambda: NOW)).following(look_s=0.001):
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
        "sandbox_transitions": 0,
    }


def test_a_bad_length_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "airlock.yaml").write_text(
        "tenants: {t: {policy: t.yaml}}\nretention: {events_days: -1, request_results_hours: 48}\n", encoding="utf-8"
    )
    with pytest.raises(Misconfigured, match=r"retention\.events_days.*retention\.request_results_hours"):
        Config.load(tmp_path / "airlock.yaml")
