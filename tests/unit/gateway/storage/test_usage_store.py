"""What is stored of usage: totals of runs, and the days of a tenant, which outlive them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agent.events import Event
from agent.messages import Usage
from gateway.storage.database import Database
from gateway.storage.entities import LoggedEvent, Run, Thread
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.retention_store import RetentionStore
from gateway.storage.run_writes import Claim, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.storage.usage_store import RunUse, UsageRow, UsageStore, Used
from gateway.storage.waiting_store import WaitingRun, WaitingStore

DAY_US = 86_400_000_000
NOON_US = 20_000 * DAY_US + DAY_US // 2
TEN = Used(1, Usage(input_tokens=10, cached_input_tokens=4, output_tokens=2, reasoning_tokens=1, cost_usd=0.000_000_5))


class Clock:
    """A clock that the test sets."""

    now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database, clock: Clock) -> Store:
    return Store(database, clock)


@pytest.fixture
def usage(database: Database) -> UsageStore:
    return UsageStore(database)


async def _run(store: Store, thread: str = "t", tenant: str = "acme") -> Run:
    new = NewRun(agent="default", task="x", policy_version="p")
    return await store.add_run(await store.thread(tenant, thread), new)


async def _charge(store: Store, run: Run, *uses: RunUse) -> None:
    await store.write_run(Claim(run.id), RunWrite(used=(run.tenant, uses)))


async def _totals(usage: UsageStore, *by: str, tenant: str = "acme", since_us: int | None = None) -> list[UsageRow]:
    groups: list[object] = [*by]
    return list(await usage.totals(tenant, groups, since_us=since_us, until_us=None, limit=100))  # type: ignore[arg-type]


async def test_a_total_that_is_written_twice_counts_once(store: Store, usage: UsageStore) -> None:
    run = await _run(store)
    use = RunUse("default", "m", TEN)
    for _ in range(2):
        await _charge(store, run, use)
    await _charge(store, run, replace(use, used=TEN + TEN, first_token_us=7))
    assert (await usage.of_runs([run.id]))[run.id] == [replace(use, used=TEN + TEN, first_token_us=7)]
    assert await _totals(usage) == [UsageRow(TEN + TEN)]


async def test_usage_is_added_up_by_day_model_and_agent(store: Store, usage: UsageStore, clock: Clock) -> None:
    run, other = await _run(store), await _run(store, "u")
    await _charge(store, run, RunUse("default", "m", TEN), RunUse("helper", "n", TEN))
    clock.now_us += DAY_US
    await _charge(store, run, RunUse("default", "m", TEN + TEN))
    await _charge(store, other, RunUse("default", "m", TEN))
    await _charge(store, await _run(store, tenant="else"), RunUse("default", "m", TEN))
    first, second = NOON_US - DAY_US // 2, NOON_US + DAY_US // 2
    assert await _totals(usage) == [UsageRow(Used(4, _times(4)))]
    assert await _totals(usage, "agent") == [
        UsageRow(Used(3, _times(3)), agent="default"),
        UsageRow(TEN, agent="helper"),
    ]
    assert await _totals(usage, "day", "model") == [
        UsageRow(TEN, day_us=first, model="m"),
        UsageRow(TEN, day_us=first, model="n"),
        UsageRow(TEN + TEN, day_us=second, model="m"),
    ]
    # The day of a time is whole.
    assert await _totals(usage, since_us=clock.now_us) == [UsageRow(TEN + TEN)]
    assert await usage.totals("acme", (), since_us=None, until_us=second, limit=9) == [UsageRow(TEN + TEN)]
    assert await _totals(usage, tenant="nobody") == []


def _times(number: int) -> Usage:
    return sum((TEN.usage for _ in range(number)), Usage())


async def test_what_was_under_way_is_charged_when_the_run_is_taken_over(
    database: Database, store: Store, usage: UsageStore
) -> None:
    run = await _run(store)
    await _charge(store, run, RunUse("default", "m", TEN, under_way=TEN + TEN))
    assert await _totals(usage) == [UsageRow(TEN)]
    waiting = WaitingStore(database, gateway="gw2")
    thread: Thread = await store.thread("acme", "t")
    claimed = await waiting.claim(WaitingRun(run.id, thread, None, 0, "gateway_lost"))
    assert claimed is not None
    charged = RunUse("default", "m", Used(3, _times(3)))
    assert list(claimed.used) == [charged]
    assert (await usage.of_runs([run.id]))[run.id] == [charged]
    assert await _totals(usage) == [UsageRow(charged.used)]
    again = await waiting.claim(WaitingRun(run.id, thread, None, 1, "gateway_lost"))
    assert again is not None
    assert list(again.used) == [charged]


async def test_the_days_outlive_the_runs_and_go_with_the_tenant(
    database: Database, store: Store, usage: UsageStore, clock: Clock
) -> None:
    run = await _run(store)
    stop = {"hook": "h", "rule": "r", "reason": "x"}
    finished = Event("run_finished", {"status": "completed", "stop": stop})  # type: ignore[dict-item]
    logged = LoggedEvent(1, "run_finished", clock(), "{}")
    write = RunWrite(events=[logged], finished=finished, used=("acme", [RunUse("default", "m", TEN)]))
    await store.write_run(Claim(run.id), write)
    assert await RetentionStore(database).prune_runs(clock() + 1) == 1
    assert await usage.of_runs([run.id]) == {run.id: []}
    assert await _totals(usage) == [UsageRow(TEN)]
    assert await usage.knows("acme")
    removed = await ErasureStore(database).remove_tenant("acme")
    assert removed["usage_days"] == 1
    assert not await usage.knows("acme")


async def test_a_price_that_no_database_can_add_up_is_bounded(store: Store, usage: UsageStore) -> None:
    run = await _run(store)
    await _charge(store, run, RunUse("default", "m", Used(1, Usage(input_tokens=10**9 - 1, cost_usd=1e300))))
    (total,) = await _totals(usage)
    assert total.used.usage.cost_usd == 1_000_000
