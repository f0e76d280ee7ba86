"""The log of a run when something in it cannot be stored: the rest is, under its own number, and the end always."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from agent.events import Event
from gateway.runs.run_log import RunLog
from gateway.storage.database import Database
from gateway.storage.entities import Run
from gateway.storage.run_writes import Claim, RunWrite
from gateway.storage.store import NewRun, Store


class Choosy(Store):
    """A real store that refuses what holds the word poison, as a database refuses what it cannot take."""

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        if any("poison" in event.payload for event in write.events):
            raise OverflowError("too large")
        await super().write_run(claim, write)


class Broken(Store):
    """A store that takes nothing, whatever it is asked."""

    asked = 0

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        self.asked += 1
        raise OverflowError("too large")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def _run(store: Store) -> Run:
    return await store.add_run(await store.thread("t", "n"), NewRun(agent="a", task="x", policy_version="p"))


async def _logged(store: Store, *emitted: Event) -> tuple[list[tuple[int, str]], list[dict[str, object]], Run | None]:
    run = await _run(store)
    log = RunLog(run.id, store)
    for event in emitted:
        log.emit(event)
    async with asyncio.timeout(10):
        await log.close()
    stored = await store.events_of(run.id, 1, 99)
    payloads = [json.loads(event.payload) for event in stored]
    return [(event.sequence, event.type) for event in stored], payloads, await store.run("t", run.id)


async def test_one_event_that_cannot_be_stored_leaves_the_others_and_the_end_as_they_were(database: Database) -> None:
    stop = {"hook": "h", "rule": "r", "reason": "why"}
    ended = Event("run_finished", {"status": "completed", "stop": stop, "answer": "42"})  # type: ignore[dict-item]
    places, payloads, run = await _logged(
        Choosy(database), Event("run_started", {"task": "a"}), Event("hook_failed", {"error": "poison"}), ended
    )
    assert places == [(1, "run_started"), (2, "hook_failed"), (3, "run_finished")]
    assert payloads[0] == {"task": "a"}
    assert set(payloads[1]) == {"problem"}
    assert payloads[2] == ended.payload
    assert run is not None
    assert (run.status, run.stop_reason, run.last_sequence) == ("completed", "why", 3)


async def test_an_end_that_cannot_be_stored_is_an_end_that_says_so(database: Database) -> None:
    places, payloads, run = await _logged(
        Choosy(database), Event("run_started", {}), Event("run_finished", {"status": "completed", "answer": "poison"})
    )
    assert places == [(1, "run_started"), (2, "run_finished")]
    assert payloads[1]["status"] == "failed"
    assert run is not None
    assert (run.status, run.stop_hook, run.stop_rule) == ("failed", "gateway", "unstorable")


@pytest.mark.parametrize("bad", [10**5000, object(), "half \ud800"], ids=["number", "object", "half"])
async def test_an_end_is_logged_whatever_is_in_it(database: Database, bad: object) -> None:
    stop = {"hook": "h", "rule": "r", "reason": "\ud800"}
    ended = Event("run_finished", {"status": "failed", "answer": bad, "stop": stop})  # type: ignore[dict-item]
    places, _, run = await _logged(Store(database), ended)
    assert places == [(1, "run_finished")]
    assert run is not None
    assert (run.status, run.stop_rule, run.stop_reason) == ("failed", "r", "\ufffd")


async def test_a_store_that_takes_nothing_is_not_asked_for_ever(database: Database) -> None:
    store = Broken(database)
    await _logged(store, Event("run_started", {}), Event("run_finished", {"status": "completed"}))
    assert store.asked == 5  # both together, then each as it is and what stands in for it


async def test_a_hook_that_calls_its_rule_by_a_long_name_ends_a_run_as_any_other(database: Database) -> None:
    stop = {"hook": "h" * 300, "rule": "r" * 300, "reason": "x" * 3000}
    finished = Event("run_finished", {"status": "stopped", "stop": stop, "answer": ""})  # type: ignore[dict-item]
    sequences, _, run = await _logged(Store(database), finished)
    assert sequences == [(1, "run_finished")]
    assert run is not None
    assert (run.status, run.stop_hook, run.stop_rule) == ("stopped", "h" * 128, "r" * 128)
