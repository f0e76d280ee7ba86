"""Runs that are asked for on a gateway of one engine while their thread's files are on another, on real databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select

from gateway.errors import OtherEngine, Overloaded, QuotaExceeded, ThreadBusy
from gateway.policy.document import PolicyDocument, QuotasSection
from gateway.policy.judge import Policy
from gateway.runs.hosting import LIVE_LIMIT, RunParts
from gateway.runs.runs import RunRequest, Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.engine_store import EngineStore
from gateway.storage.entities import Run
from gateway.storage.tables import audit_records
from gateway.storage.tables import runs as runs_table
from gateway.storage.waiting_store import WaitingStore
from gateway.tool_calls.thread_sandbox import ThreadEngines
from tests.unit.agent.fakes import says
from tests.unit.gateway.made_parts import made_tool_calls
from tests.unit.gateway.runs.test_taking_over import LONG_US, Gateway, Held, world
from tests.unit.gateway.runs.test_waiting_runs import a_policy
from tests.unit.gateway.serving.test_instance import FakeEngine

__all__ = ["world"]


class OnEngine(Gateway):
    """A gateway of the engine E1 or E2; it takes runs from `serve` on."""

    def __init__(self, world: Held, name: str, engine: str) -> None:
        super().__init__(world, name)
        self.before = [self._first, self.runs]
        self.engine = engine
        self.engines = ThreadEngines(EngineStore(world.database), FakeEngine(engine))
        store = WaitingStore(world.database, gateway=name, engine=engine)
        self.waiting = WaitingRuns(store, self.asked, world, poll_s=0.01, others_after_s=0.05, takes_over=True)
        self.tool_calls = made_tool_calls(
            world.database, world, store=self.store, approvals=self.asked, engines=self.engines
        )

    async def serve(self) -> None:
        for one in self.before:
            await one.stop_following()
        self.runs = Runs(
            RunParts(
                self.store,
                self.tool_calls,
                waiting=self.waiting,
                quotas=self.quotas,
                on_stop="cancel",
                models=self.models,
            )
        )
        await self.leases.take(self.name, LONG_US, engine=self.engine)


@pytest.fixture
async def pair(world: Held) -> AsyncIterator[tuple[OnEngine, OnEngine]]:
    """Gateways of two engines; the files of thread t are on E1."""
    made = OnEngine(world, "gw_1", "E1"), OnEngine(world, "gw_2", "E2")
    for one in made:
        await one.serve()
    await made[0].engines.claim(await made[0].store.thread("acme", "t"))
    yield made
    for one in made:
        await one.runs.close()


async def _row(world: Held, run: Run) -> Any:
    (row,) = await world.database.rows(select(runs_table).where(runs_table.c.id == run.id))
    return row


async def test_a_run_is_hosted_on_the_engine_of_its_files_whichever_gateway_is_asked(
    world: Held, pair: tuple[OnEngine, OnEngine]
) -> None:
    _, second = pair
    run = await second.start()
    assert run.status == "running"
    events = await second.events(run)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    types = [event.type for event in events]
    assert (types[0], types[-1]) == ("run_started", "run_finished")
    assert "run_resumed" not in types
    assert json.loads(events[-1].payload)["answer"] == "Written."
    assert world.files.files == {"/workspace/a": b"1"}
    assert (await _row(world, run)).gateway == "gw_1"
    kinds = await world.database.rows(select(audit_records.c.kind).order_by(audit_records.c.sequence))
    assert [row.kind for row in kinds if row.kind.startswith("run_")] == ["run_started", "run_finished"]


async def test_a_request_that_is_repeated_anywhere_starts_one_run(world: Held, pair: tuple[OnEngine, OnEngine]) -> None:
    acme = await world.named("acme")
    started = await asyncio.gather(*(pair[n % 2].runs.start(acme, RunRequest("go", "t", id="r")) for n in range(6)))
    (run_id,) = {run.id for run in started}
    assert run_id
    await pair[0].events(started[0])
    assert len(world.asked) == 2


async def test_a_run_is_refused_where_no_gateway_serves_its_engine_and_nothing_is_left(
    world: Held, pair: tuple[OnEngine, OnEngine]
) -> None:
    first, second = pair
    await first.lose()
    with pytest.raises(OtherEngine, match="No gateway is currently serving that engine") as refused:
        await second.start()
    assert refused.value.details == {"engine": "E1"}
    assert await world.database.rows(select(runs_table.c.id)) == []


async def test_one_that_was_recorded_goes_on_where_its_thread_is_adopted(
    world: Held, pair: tuple[OnEngine, OnEngine]
) -> None:
    first, second = pair
    await first.runs.stop_following()  # it serves, and comes to nothing more
    run = await second.start()
    assert (await _row(world, run)).gateway is None
    with pytest.raises(ThreadBusy, match=run.id):
        await second.start()
    await first.leases.end(["gw_1"])
    await EngineStore(world.database).adopt("E1", to="E2", tenant=None, by="local:me")
    events = await second.events(run)
    assert (events[0].type, events[-1].type) == ("run_started", "run_finished")
    assert (await _row(world, run)).gateway == "gw_2"


async def test_one_that_is_cancelled_before_it_is_taken_never_asks_the_model(
    world: Held, pair: tuple[OnEngine, OnEngine]
) -> None:
    first, second = pair
    await first.runs.stop_following()
    run = await second.start()
    await second.runs.cancel(await world.named("acme"), run.id)
    later = OnEngine(world, "gw_3", "E1")
    await later.serve()
    assert (await second.status(run, "cancelled")).status == "cancelled"
    assert world.asked == []
    await later.runs.close()


async def test_what_waits_for_another_engine_counts_and_is_bounded(
    world: Held, pair: tuple[OnEngine, OnEngine]
) -> None:
    first, second = pair
    acme = await world.named("acme")
    await first.runs.stop_following()
    names = [f"t{number}" for number in range(LIVE_LIMIT + 1)]
    for name in names:
        await first.engines.claim(await first.store.thread("acme", name))
    for name in names[:2]:
        await second.runs.start(acme, RunRequest("go", name))
    quotas = QuotasSection(runs_at_once=2)
    limited = Policy(PolicyDocument(version=1, rules=a_policy("allow").document.rules, quotas=quotas))
    world.put_in_force("v2", limited)
    with pytest.raises(QuotaExceeded):
        await second.runs.start(await world.named("acme"), RunRequest("go", names[2]))
    world.put_in_force("v1", a_policy("allow"))
    for name in names[2:-1]:
        await second.runs.start(acme, RunRequest("go", name))
    with pytest.raises(Overloaded, match=f"{LIVE_LIMIT} runs of this tenant wait"):
        await second.runs.start(acme, RunRequest("go", names[-1]))
    world.script = [says("Done.") for _ in names]
    later = OnEngine(world, "gw_3", "E1")
    await later.serve()
    async with asyncio.timeout(60):
        while await world.database.rows(select(runs_table.c.id).where(runs_table.c.status == "running")):
            await asyncio.sleep(0.02)
    await later.runs.close()
    ended = await world.database.rows(select(runs_table.c.status, runs_table.c.gateway))
    assert {tuple(row) for row in ended} == {("completed", "gw_3")}
    assert len(ended) == LIVE_LIMIT
