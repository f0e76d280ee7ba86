"""Runs whose gateway is lost: taken over by another one from each place a run can be at, on a real database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from agent.events import Event
from agent.hooks.hook import InferenceRequest
from agent.models.model import OnDelta
from agent.state import ModelResponse
from gateway.errors import ThreadBusy
from gateway.runs.hosting import RunParts
from gateway.runs.lease import Lease
from gateway.runs.run_log import RunLog
from gateway.runs.runs import Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.database import Database
from gateway.storage.entities import LoggedEvent, Run
from gateway.storage.run_writes import Claim, KeptStep, LeaseLost, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import runs as runs_table
from gateway.storage.tables import tool_calls
from gateway.storage.waiting_store import LeaseStore
from tests.unit.agent.fakes import says
from tests.unit.gateway.runs.test_waiting_runs import Host, World, a_policy, writes

LONG_US = 60_000_000


class Held(World):
    """A world whose model and whose files can be made to wait: `reached` is set when a caller waits."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.reached = asyncio.Event()
        self.holds: str = ""
        self.put_in_force("v1", a_policy("allow"))
        write = self.files.write

        async def held_write(path: str, data: Any) -> Any:
            written = await write(path, data)
            await self.hold("write")
            return written

        self.files.write = held_write  # type: ignore[method-assign]

    async def hold(self, where: str) -> None:
        if self.holds == where:
            self.reached.set()
            await asyncio.Event().wait()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        await self.hold(f"answer {len(self.asked) + 1}")
        return await super().infer(request, on_delta)


class Gateway(Host):
    """A gateway that takes runs over, with a lease that the test gives and ends."""

    def __init__(self, world: World, name: str, **settings: Any) -> None:
        super().__init__(world, name)
        self._first = self.runs
        self.leases = LeaseStore(world.database)
        self.name = name
        store = self.waiting.store
        self.waiting = WaitingRuns(store, self.asked, world, poll_s=0.01, others_after_s=0.05, takes_over=True)
        self.runs = Runs(
            RunParts(
                self.store,
                self.tool_calls,
                waiting=self.waiting,
                quotas=self.quotas,
                models=self.models,
                **{"on_stop": "cancel", **settings},
            )
        )

    async def serve(self) -> None:
        await self._first.stop_following()
        await self.leases.take(self.name, LONG_US)

    async def lose(self) -> None:
        """Die: what is hosted ends without a word, and the lease with it."""
        await self.runs.stop_following()
        works = list(self.runs.live.values())
        self.runs.abandon_all()
        await asyncio.gather(*(work.ended for work in works if work.ended is not None))
        await self.leases.end((self.name,))


@pytest.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    database = await Database.open(database_url)
    made = Held(database)
    made.script = [says("I write.", writes()), says("Written.")]
    yield made
    await database.close()


Make = Callable[..., Gateway]


@pytest.fixture
async def gateway(world: Held) -> AsyncIterator[Make]:
    made: list[Gateway] = []

    def make(name: str, **settings: Any) -> Gateway:
        made.append(Gateway(world, name, **settings))
        return made[-1]

    yield make
    for one in made:
        await one.runs.close()


def _reported(events: list[LoggedEvent]) -> Counter[tuple[str, Any]]:
    payloads = [(event.type, json.loads(event.payload)) for event in events]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return Counter(
        (type_, payload.get("call_id", payload.get("step")))
        for type_, payload in payloads
        if type_ not in ("model_delta", "tool_output", "run_resumed", "state_changed", "hook_failed")
    )


async def _taken_over(world: Held, make: Make, holds: str, *, on_stop: str = "") -> tuple[Run, list[LoggedEvent]]:
    """Lose a gateway while its run is held there; return the run at its end, and its events."""
    world.holds = holds
    first = make("gw_1", on_stop=on_stop or "cancel")
    await first.serve()
    run = await first.start()
    async with asyncio.timeout(20):
        await world.reached.wait()
        while (await first.store.run("acme", run.id)).last_sequence < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    if on_stop:
        await first.runs.close()
        await first.leases.end((first.name,))
    else:
        await first.lose()
    world.holds = ""
    second = make("gw_2")
    await second.serve()
    ended = await second.status(run, "completed", "failed", "cancelled")
    events = await second.events(run)
    assert set(_reported(events).values()) == {1}, _reported(events)
    resumed = [json.loads(event.payload)["because"] for event in events if event.type == "run_resumed"]
    assert resumed == ["gateway_stopped" if on_stop == "hand_over" else "gateway_lost"]
    thread = await second.store.thread("acme", "t")
    said = [message.role for message in await second.store.messages_of(thread)]
    assert said == ["user", "assistant", "tool", "assistant"]
    return ended, events


@pytest.mark.parametrize("holds", ["answer 1", "answer 2"])
async def test_a_run_goes_on_between_two_steps(world: Held, gateway: Make, holds: str) -> None:
    ended, _ = await _taken_over(world, gateway, holds)
    assert ended.status == "completed"
    assert world.files.files == {"/workspace/a": b"1"}
    assert len(world.asked) == 2


@pytest.mark.parametrize("on_stop", ["", "hand_over"])
async def test_a_call_that_was_in_progress_is_not_run_again_and_the_model_is_informed(
    world: Held, gateway: Make, on_stop: str
) -> None:
    ended, events = await _taken_over(world, gateway, "write", on_stop=on_stop)
    assert ended.status == "completed"
    (finished,) = [json.loads(event.payload) for event in events if event.type == "tool_call_finished"]
    assert finished["outcome"] == "interrupted"
    assert "not run again" in world.asked[-1].messages[-1].content
    rows = await world.database.rows(select(tool_calls.c.state, tool_calls.c.result))
    assert [tuple(row) for row in rows] == [("interrupted", None)]


async def test_a_call_that_only_reads_is_made_again_under_its_id(
    world: Held, gateway: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.files.files["/workspace/a"] = b"there"
    reads = writes().model_copy(update={"name": "read_file", "arguments": {"path": "/workspace/a"}})
    world.script[0] = says("", reads)
    read, times = world.files.read_lines, 0

    async def held_read(*given: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        await world.hold("read")
        return await read(*given, **more)

    monkeypatch.setattr(world.files, "read_lines", held_read)
    await _taken_over(world, gateway, "read")
    assert times == 2
    assert "there" in world.asked[-1].messages[-1].content


async def test_a_call_that_had_ended_keeps_its_result(world: Held, gateway: Make) -> None:
    world.script[0] = says("", writes("/workspace/b"), writes())
    write = world.files.write

    async def only_a(path: str, data: Any) -> Any:
        if path == "/workspace/b":
            world.holds, held = "", world.holds
            try:
                return await write(path, data)
            finally:
                world.holds = held
        return await write(path, data)

    world.files.write = only_a  # type: ignore[method-assign]
    world.holds = "write"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    # Both calls of a step are shown when all are over: what ended first is in its row, once its after pass has been.
    await first.lose()
    world.holds = ""
    second = gateway("gw_2")
    await second.serve()
    await second.status(run, "completed")
    finished = [json.loads(e.payload) for e in await second.events(run) if e.type == "tool_call_finished"]
    assert len(finished) == 2
    assert world.files.files.keys() == {"/workspace/a", "/workspace/b"}


async def test_a_stalled_gateway_that_is_back_writes_nothing(world: Held, gateway: Make) -> None:
    world.holds = "answer 2"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    await first.leases.end((first.name,))  # it lives, and does not know
    await first.runs.stop_following()
    world.holds = ""
    stalled = first.runs.live[run.id]
    second = gateway("gw_2")
    await second.serve()
    await second.status(run, "completed")
    before = await second.events(run)
    stalled.log.emit(Event("model_delta", {"text": "late"}))
    assert stalled.ended is not None
    async with asyncio.timeout(20):
        await asyncio.wait({stalled.ended})
    assert await second.events(run) == before
    assert first.runs.live == {}


async def test_a_call_that_finds_the_lease_over_is_none_that_failed_though_the_lease_is_renewed_right_after(
    world: Held, gateway: Make
) -> None:
    now_s = 0.0
    lease = Lease(LeaseStore(world.database), "gw_1", lease_s=5.0, clock=lambda: now_s)
    looks = 0

    def found_over() -> bool:
        nonlocal now_s, looks
        looks += 1
        now_s += 10.0 if looks == 1 else 0.0  # the process stalls, and a call is the first to look
        return lease.over()

    first = gateway("gw_1", lease_over=found_over)
    lease.lost = first.runs.abandon_all
    await first.serve()
    run = await first.start()
    await first.status(run, "completed")
    events = await first.events(run)
    assert set(_reported(events).values()) == {1}
    (finished,) = [json.loads(event.payload) for event in events if event.type == "tool_call_finished"]
    assert finished["outcome"] == "completed"
    assert [event.type for event in events].count("run_resumed") == 1
    assert world.files.files == {"/workspace/a": b"1"}
    assert looks > 1


async def test_a_write_of_another_epoch_changes_nothing(world: Held) -> None:
    store = Store(world.database)
    thread = await store.thread("acme", "t")
    run = await store.add_run(thread, NewRun(agent="default", task="x", policy_version="p"))
    await world.database.write((update(runs_table).values(epoch=1), None))
    logged = LoggedEvent(1, "run_started", 1, "{}")
    old = Claim(run.id, 0)
    row = {
        "tenant": "acme",
        "thread_id": thread.id,
        "run_id": run.id,
        "name": "n",
        "arguments": "",
        "state": "executing",
    }
    row |= {"arguments_digest": "", "policy_version": "", "id": "call_1"}
    for write in (
        store.write_run(old, RunWrite(events=[logged], step=KeptStep(thread, 0, removed=["k"]), checkpoint="{}")),
        store.write_tool_call(row, claim=old),
        store.finish_tool_call("call_1", {"state": "finished"}, claim=old),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await store.events_of(run.id, 1, 9) == []
    await store.write_run(Claim(run.id, 1), RunWrite(events=[logged]))
    assert len(await store.events_of(run.id, 1, 9)) == 1


async def test_a_run_is_cancelled_from_any_gateway(world: Held, gateway: Make) -> None:
    world.holds = "answer 1"
    first, second = gateway("gw_1"), gateway("gw_2")
    await first.serve()
    await second.serve()
    run = await first.start()
    await world.reached.wait()
    await second.runs.cancel(await world.named("acme"), run.id)
    ended = await second.status(run, "cancelled")
    assert ended.stop_rule == "cancelled"


async def test_one_run_at_a_time_in_a_thread_over_all_gateways(world: Held, gateway: Make) -> None:
    world.holds = "answer 1"
    first, second = gateway("gw_1"), gateway("gw_2")
    await first.serve()
    await second.serve()
    run = await first.start()
    with pytest.raises(ThreadBusy) as busy:
        await second.start()
    assert busy.value.details == {"run_id": run.id}


async def test_an_answer_is_shown_when_it_is_kept(world: Held) -> None:
    store = Store(world.database)
    run = await store.add_run(await store.thread("acme", "t"), NewRun(agent="default", task="x", policy_version="p"))
    log = RunLog(run.id, store)
    log.emit(Event("step_started", {"step": 1}))
    log.emit(Event("model_finished", {"step": 1}))
    log.emit(Event("state_changed", {}))
    await log.wait(0)
    assert [event.type for event in await store.events_of(run.id, 1, 9)] == ["step_started"]
    await log.checkpoint("{}")
    types = [event.type for event in await store.events_of(run.id, 1, 9)]
    assert types == ["step_started", "model_finished", "state_changed"]
    log.abandon()
    await log.close()


async def test_a_lease_that_was_not_renewed_in_time_ends_what_is_hosted(world: Held) -> None:
    now_s = 0.0
    lost = asyncio.Event()
    leases = LeaseStore(world.database)
    lease = Lease(leases, "gw_1", lease_s=0.05, clock=lambda: now_s)
    lease.lost = lost.set
    async with lease.hold():
        now_s = 10.0
        async with asyncio.timeout(20):
            await lost.wait()
