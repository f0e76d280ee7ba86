"""The store on a real SQLite file: migrations, grouped writes, events, and what a restart does to open work."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import JsonValue
from sqlalchemy import insert, select

from agent.events import Event
from agent.messages import Message
from gateway.errors import Misconfigured, Unavailable
from gateway.runs.run_log import RunLog
from gateway.storage import store as store_module
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.entities import LoggedEvent, Thread
from gateway.storage.run_writes import Claim, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import api_keys, messages, thread_metadata, threads
from gateway.storage.waiting_store import LeaseStore
from tests.unit.gateway.stored_steps import keep_step


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


async def test_a_bad_write_does_not_fail_the_ones_grouped_with_it(database: Database) -> None:
    def row(name: str) -> dict[str, object]:
        return {"id": name, "tenant": "t", "name": name, "created_us": 1}

    await database.write((insert(threads), row("a")))
    answers = await asyncio.gather(
        *(database.write((insert(threads), row(name))) for name in ("b", "a", "c")), return_exceptions=True
    )
    assert answers[0] is None
    assert isinstance(answers[1], ConstraintViolated)
    assert answers[2] is None


async def test_two_calls_that_make_a_thread_at_once_get_the_same_one(store: Store) -> None:
    made = await asyncio.gather(*(store.thread("t", "name") for _ in range(8)))
    assert len({thread.id for thread in made}) == 1
    assert (await store.thread("other", "name")).id != made[0].id


async def test_messages_come_back_in_order(store: Store) -> None:
    thread = await store.thread("t", "name")
    await keep_step(store, thread, "run_1", 0, [Message(role="user", content="a")])
    await keep_step(store, thread, "run_1", 1, [Message(role="assistant", content="b")])
    assert [message.content for message in await store.messages_of(thread)] == ["a", "b"]


async def test_a_step_kept_twice_is_kept_once(store: Store) -> None:
    thread, other = await store.thread("t", "name"), await store.thread("t", "other")
    await keep_step(store, other, "run_0", 0, [Message(role="user", content="other")], changed={"k": "0"})
    await keep_step(store, thread, "run_1", 0, [Message(role="user", content="a")])
    for said in (["b"], ["b", "c"]):
        added = [Message(role="assistant", content=content) for content in said]
        await keep_step(store, thread, "run_1", 1, added, changed={"k": "1"}, removed=["gone"])
    assert [message.content for message in await store.messages_of(thread)] == ["a", "b", "c"]
    assert await store.metadata_of(thread) == {"k": 1}
    assert [message.content for message in await store.messages_of(other)] == ["other"]
    assert await store.metadata_of(other) == {"k": 0}


async def test_metadata_is_changed_and_removed_by_key(store: Store) -> None:
    thread = await store.thread("t", "name")
    assert await store.metadata_of(thread) == {}
    await keep_step(store, thread, "run_1", 0, (), changed={"a.b": '{"x": [1, null]}', "plain": '"v"', "long": "1"})
    await keep_step(store, thread, "run_1", 0, (), changed={"plain": "null"}, removed=["long"])
    assert await store.metadata_of(thread) == {"a.b": {"x": [1, None]}, "plain": None}


async def test_messages_and_metadata_of_a_step_are_kept_together_or_not_at_all(store: Store) -> None:
    thread = await store.thread("t", "name")
    nowhere = Thread(id="no such thread", tenant="t", name="x")
    with pytest.raises(ConstraintViolated):
        await keep_step(store, nowhere, "run_1", 0, (), changed={"k": "1"})
    await keep_step(store, thread, "run_1", 0, [Message(role="user", content="a")])
    bad: dict[str, str] = {"k": None}  # type: ignore[dict-item]
    with pytest.raises(ConstraintViolated):
        await keep_step(store, thread, "run_1", 1, [Message(role="user", content="b")], changed=bad)
    assert [message.content for message in await store.messages_of(thread)] == ["a"]


async def test_a_run_log_numbers_without_gaps_and_joins_neighbouring_deltas(store: Store) -> None:
    run = await store.add_run(await store.thread("t", "n"), NewRun(agent="a", task="x", policy_version="p"))
    log = RunLog(run.id, store)
    log.emit(Event("run_started", {}))
    for piece in "hello":
        log.emit(Event("model_delta", {"text": piece}))
    log.emit(Event("run_finished", {"status": "completed", "stop": {"hook": "h", "rule": "r", "reason": "why"}}))
    log.emit(Event("late", {}))
    await log.wait(2)
    await log.close()
    stored = await store.events_of(run.id, 1, 100)
    assert [event.type for event in stored] == ["run_started", "model_delta", "run_finished"]
    assert [event.sequence for event in stored] == [1, 2, 3]
    assert stored[1].payload == '{"text": "hello"}'
    ended = await store.run("t", run.id)
    assert ended is not None
    assert (ended.status, ended.stop_rule, ended.last_sequence) == ("completed", "r", 3)
    assert await store.run("other", run.id) is None


async def test_events_are_stored_in_order_after_the_database_refused_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await store.add_run(await store.thread("t", "n"), NewRun(agent="a", task="x", policy_version="p"))
    real, refusals = store.write_run, [Unavailable("full"), Unavailable("still full")]

    async def write_run(*arguments: object) -> None:
        if refusals:
            raise refusals.pop()
        await real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write_run", write_run)
    log = RunLog(run.id, store)
    log.emit(Event("run_started", {}))
    log.emit(Event("run_finished", {"status": "completed"}))
    async with asyncio.timeout(10):
        await log.close()
    assert [event.type for event in await store.events_of(run.id, 1, 9)] == ["run_started", "run_finished"]


async def test_a_locked_database_is_one_clear_error_for_all_who_wait(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db?timeout=0.01")
    with closing(sqlite3.connect(tmp_path / "airlock.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        row = {"id": "a", "tenant": "t", "name": "secret-name", "created_us": 1}
        answers = await asyncio.gather(
            *(database.write((insert(threads), row)) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert all("secret-name" not in str(answer) for answer in answers)
        other.execute("ROLLBACK")
    await database.write((insert(threads), row))
    await database.close()


async def test_a_write_after_the_end_is_refused_and_does_not_wait(tmp_path: Path) -> None:
    opened = await Database.open(f"sqlite:///{tmp_path}/b.db")
    await opened.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await opened.write((insert(threads), {}))


@pytest.mark.parametrize("damage", ["nonsense", "sqlite:////no/such/directory/a.db", "postgresql+asyncpg://x"])
async def test_a_database_that_does_not_open_says_how_to_fix_it(damage: str) -> None:
    with pytest.raises(Misconfigured, match="database"):
        await Database.open(damage)


async def test_a_file_that_is_no_database_is_reported_as_that(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(Misconfigured, match="not a database"):
        await Database.open(f"sqlite:///{tmp_path}/c.db")


async def test_a_database_damaged_while_open_is_unavailable_to_readers(tmp_path: Path) -> None:
    opened = await Database.open(f"sqlite:///{tmp_path}/d.db")
    with closing(sqlite3.connect(tmp_path / "d.db")) as other:
        other.execute("DROP TABLE api_keys")
    with pytest.raises(Unavailable, match="api_keys"):
        await opened.rows(select(api_keys.c.id))
    await opened.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await opened.rows(select(api_keys.c.id))


async def test_services_calls_of_a_process_without_a_lease_are_interrupted(store: Store, database: Database) -> None:
    thread = await store.thread("t", "n")
    run = await store.add_run(thread, NewRun(agent="a", task="x", policy_version="p"))
    call = {
        "id": "call_1",
        "tenant": "t",
        "thread_id": thread.id,
        "name": "execute",
        "arguments": "{}",
        "arguments_digest": "d",
        "policy_version": "p",
        "state": "executing",
    }
    await store.write_tool_call(call)
    await store.write_tool_call({**call, "id": "call_2", "run_id": run.id})
    await store.write_tool_call({**call, "id": "call_3", "gateway": "gw_lives"})
    leases = LeaseStore(database)
    await leases.take("gw_lives", 60_000_000)
    assert await leases.reap() == 0
    assert await leases.reap(all_=True) == 1
    for call_id in ("call_2", "call_3"):
        left = await store.tool_call("t", call_id)
        assert left is not None
        assert left["state"] == "executing"
    journaled = await store.tool_call("t", "call_1")
    assert journaled is not None
    assert [journaled[name] for name in ("state", "outcome", "is_error")] == ["interrupted", "interrupted", True]
    assert await store.tool_call("other", "call_1") is None


@pytest.mark.parametrize(
    "bad",
    [{"name": "half \ud800"}, {"created_us": 2**70}, {"name": {}}],
    ids=["half a surrogate pair", "too large a number", "no text"],
)
async def test_a_value_that_no_driver_takes_fails_alone(database: Database, bad: dict[str, object]) -> None:
    def row(name: str) -> dict[str, object]:
        return {"id": name, "tenant": "t", "name": name, "created_us": 1}

    answers = await asyncio.gather(
        *(database.write((insert(threads), one)) for one in (row("a"), row("x") | bad, row("b"))),
        return_exceptions=True,
    )
    assert [answer is None for answer in answers] == [True, False, True]
    assert not isinstance(answers[1], Unavailable)


async def test_nul_is_replaced_in_whatever_is_stored(database: Database) -> None:
    rows = [{"id": f"{n}", "tenant": "t", "name": f"{n}: a\0b", "created_us": 1} for n in range(3)]
    await database.write((insert(threads), rows[0]))
    await database.write((insert(threads), rows[1:]))
    found = await database.rows(select(threads.c.name).order_by(threads.c.id))
    assert [row.name for row in found] == ["0: a\ufffdb", "1: a\ufffdb", "2: a\ufffdb"]
    assert await database.rows(select(threads.c.id).where(threads.c.name == "1: a\0b"))


async def test_whatever_was_said_a_run_gets_its_end_and_its_events_are_strict_json(store: Store) -> None:
    run = await store.add_run(await store.thread("t", "n"), NewRun(agent="a", task="x", policy_version="p"))
    log = RunLog(run.id, store)
    log.emit(Event("model_finished", {"text": "half \ud800", "n": [float("nan"), float("inf")], "said": "NaN"}))
    log.emit(Event("tool_call_finished", {"call_id": "c1", "content": "x" * 10_000_000}))
    stop: dict[str, JsonValue] = {"hook": "h", "rule": "r", "reason": "half \ud800"}
    log.emit(Event("run_finished", {"status": "failed", "stop": stop}))
    async with asyncio.timeout(10):
        await log.close()
    ended = await store.run("t", run.id)
    assert ended is not None
    assert (ended.status, ended.stop_reason) == ("failed", "half \ufffd")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (one,), (other,) = await store.events_of(run.id, 1, 9), await store.events_of(run.id, 2, 1)
    first, second = (json.loads(event.payload, parse_constant=refuse) for event in (one, other))
    assert first == {"text": "half \ufffd", "n": [None, None], "said": "NaN"}
    assert second["call_id"] == "c1"
    assert second["content"].endswith("... [cut: 10000000 characters]")


async def test_a_page_of_large_events_is_short_and_never_empty(store: Store) -> None:
    run = await store.add_run(await store.thread("t", "n"), NewRun(agent="a", task="x", policy_version="p"))
    large = [LoggedEvent(n, "model_delta", 1, json.dumps({"text": "x" * 3_000_000})) for n in (1, 2, 3)]
    await store.write_run(Claim(run.id), RunWrite(events=large))
    assert [event.sequence for event in await store.events_of(run.id, 1, 9)] == [1]
    assert [event.sequence for event in await store.events_of(run.id, 3, 9)] == [3]
    assert await store.events_of(run.id, 4, 9) == []


async def test_one_damaged_message_does_not_cost_the_thread(store: Store, database: Database) -> None:
    thread = await store.thread("t", "n")
    run = await store.add_run(thread, NewRun(agent="a", task="x", policy_version="p"))
    await keep_step(store, thread, run.id, 0, (Message(role="user", content="hi"),), changed={}, removed=())
    row = {"thread_id": thread.id, "position": 1, "run_id": run.id, "message": "nonsense"}
    await database.write((insert(messages), row))
    first, second = await store.messages_of(thread)
    assert first.content == "hi"
    assert "cannot be read" in second.content
    chars, waiting = await store.before_run(thread)
    assert chars > 8
    assert waiting is None


async def test_a_step_with_a_message_that_no_store_takes_is_kept(store: Store) -> None:
    thread = await store.thread("t", "n")
    await keep_step(store, thread, "run_1", 0, [Message(role="user", content="half \ud800")], changed={"k": "1"})
    assert [message.content for message in await store.messages_of(thread)] == ["half \ufffd"]
    assert await store.metadata_of(thread) == {"k": 1}


@pytest.mark.parametrize("slice_chars", [1, 200, 10**9])
async def test_a_thread_is_whole_in_whatever_slices_it_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, slice_chars: int
) -> None:
    monkeypatch.setattr(store_module, "_SLICE_CHARS", slice_chars)
    thread, other = await store.thread("t", "n"), await store.thread("t", "other")
    said = [Message(role="user", content=str(n)) for n in range(12)]
    values = {f"key{n}": n for n in range(12)}
    await keep_step(store, other, "run_0", 0, said[:3], changed={"key": "0"})
    await keep_step(store, thread, "run_1", 0, said, changed={key: str(value) for key, value in values.items()})
    assert await store.messages_of(thread) == tuple(said)
    assert await store.metadata_of(thread) == values


async def test_neither_a_long_thread_nor_the_end_waits_for_the_threads_of_others(tmp_path: Path) -> None:
    """The loop's own pool is for everybody; one tenant's work there must not hold another's run, or the end."""
    of_others = set(threading.enumerate())
    database = await Database.open(f"sqlite:///{tmp_path}/e.db")
    store = Store(database)
    thread = await store.thread("t", "n")
    await keep_step(store, thread, "run_1", 0, [Message(role="user", content="a")], changed={"k": "1"})
    released = threading.Event()
    busy = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(busy)
    busy.submit(released.wait)
    try:
        async with asyncio.timeout(20):
            assert len(await store.messages_of(thread)) == 1
            assert await store.metadata_of(thread) == {"k": 1}
            await database.close()
    finally:
        released.set()
    assert not [one.name for one in {*threading.enumerate()} - of_others if one.name.startswith("database")]


async def test_one_damaged_value_does_not_cost_the_thread(store: Store, database: Database) -> None:
    thread = await store.thread("t", "n")
    for key, value in (("a", "1"), ("b", "{broken")):
        row = {"thread_id": thread.id, "key": key, "value": value, "updated_us": 1}
        await database.write((insert(thread_metadata), row))
    assert await store.metadata_of(thread) == {"a": 1}
