"""What is special about runs whose gateway is lost: subagents, used approvals, calls of a gateway that only stalls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select, update

from agent.events import Event
from agent.hooks.hook import InferenceRequest
from agent.messages import ToolCall
from agent.models.model import OnDelta
from agent.state import ModelResponse
from gateway.config.agent_settings import AgentSettings
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.storage.entities import LoggedEvent, Run
from gateway.storage.run_writes import Claim, LeaseLost, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import audit_records
from gateway.storage.tables import runs as runs_table
from gateway.tenancy.tenants import Tenant
from tests.unit.agent.fakes import says
from tests.unit.gateway.runs.test_taking_over import Gateway, Held, Make, gateway, world
from tests.unit.gateway.runs.test_waiting_runs import MODEL, a_policy, writes

__all__ = ["gateway", "world"]
READER = {"description": "reads", "system_prompt": "You read."}
SUBAGENTS = AgentSettings.model_validate({"capabilities": {"subagents": {"definitions": {"reader": READER}}}})


async def _reached(world: Held, gateway: Gateway, run: Run) -> None:
    async with asyncio.timeout(20):
        await world.reached.wait()
        while (await gateway.store.run("acme", run.id)).last_sequence < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)


async def _next(world: Held, gateway: Make, **settings: Any) -> Gateway:
    world.holds = ""
    second = gateway("gw_2", **settings)
    await second.serve()
    return second


async def test_a_subagent_in_progress_is_interrupted_and_its_parent_is_informed(
    world: Held, gateway: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def named(name: str) -> Tenant:
        return Tenant(name, world.in_force, MODEL, {"default": SUBAGENTS})

    monkeypatch.setattr(world, "named", named)
    rule = Rule(id="subagents", tools=("spawn_subagent",), effect="allow", reason="a test")
    world.put_in_force("v1", Policy(PolicyDocument(version=1, rules=(rule,))))
    spawn = ToolCall(id="s", name="spawn_subagent", arguments={"name": "reader", "task": "read it"})
    world.script = [says("", spawn), says("Without it."), says("never")]
    world.holds = "answer 2"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await _reached(world, first, run)
    await first.lose()
    second = await _next(world, gateway)
    assert (await second.status(run, "completed", "failed")).status == "completed"
    events = [(event.type, json.loads(event.payload)) for event in await second.events(run)]
    (finished,) = [payload for type_, payload in events if type_ == "tool_call_finished" and "within" not in payload]
    assert (finished["name"], finished["outcome"]) == ("spawn_subagent", "interrupted")
    assert events[-1][1]["answer"] == "Without it."
    assert len(world.script) == 1


async def test_a_run_that_loses_its_gateway_twice_in_a_step_reports_the_step_once(world: Held, gateway: Make) -> None:
    world.holds = "answer 1"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    reported = 0
    for name in ("gw_2", "gw_3"):
        lost = first
        async with asyncio.timeout(20):
            await world.reached.wait()
            # It has reported the step, or that it goes on with it, and that is stored.
            while (found := await lost.store.run("acme", run.id)) is None or found.last_sequence <= reported:
                await asyncio.sleep(0.01)
        reported = found.last_sequence
        await lost.lose()
        world.reached.clear()
        world.holds = "answer 1" if name == "gw_2" else ""
        first = gateway(name)
        await first.serve()
    assert (await first.status(run, "completed", "failed")).status == "completed"
    types = [event.type for event in await first.events(run)]
    assert (types.count("run_started"), types.count("step_started"), types.count("run_resumed")) == (1, 2, 2)


async def test_an_approval_that_was_used_before_its_gateway_was_lost_is_not_used_again(
    world: Held, gateway: Make
) -> None:
    world.put_in_force("v1", a_policy("ask"))
    world.script = [says("", writes()), says("", writes()), says("Written.")]
    world.holds = "write"
    first = gateway("gw_1")
    await first.serve()
    run, approval_id = await first.waits()
    await first.answer(approval_id)
    await _reached(world, first, run)
    await first.lose()
    second = await _next(world, gateway)
    async with asyncio.timeout(20):
        while not (again := await second.pending(run)):
            await asyncio.sleep(0.01)
    assert again[0] != approval_id
    assert (await second.approvals.get(await world.named("acme"), approval_id)).status == "used"
    assert "not run again" in world.asked[-1].messages[-1].content
    await second.status(run, "waiting")
    await second.answer(again[0])
    assert (await second.status(run, "completed")).status == "completed"


async def test_a_gateway_that_lost_its_lease_and_goes_on_serving_takes_its_runs_up_again(
    world: Held, gateway: Make
) -> None:
    world.holds = "write"
    only = gateway("gw_1")
    await only.serve()
    run = await only.start()
    await _reached(world, only, run)
    world.holds = ""
    only.runs.abandon_all()  # as Lease.lost does; the lease is taken anew at once
    ended = await only.status(run, "completed", "failed")
    assert ended.status == "completed"
    types = [event.type for event in await only.events(run)]
    assert (types.count("run_resumed"), types.count("tool_call_finished")) == (1, 1)
    assert world.files.files == {"/workspace/a": b"1"}
    world.script = [says("Another.")]
    assert (await only.status(await only.start(), "completed")).status == "completed"


@pytest.mark.parametrize("holds, ends", [("write", [("acme", "t")]), ("answer 1", [])])
async def test_what_a_lost_gateway_has_under_way_is_ended_before_its_run_goes_on(
    world: Held, gateway: Make, holds: str, ends: list[tuple[str, str]]
) -> None:
    asked: list[tuple[str, str]] = []

    async def end_calls(tenant: str, thread: str) -> bool:
        # The model has not seen it yet.
        assert len(world.asked) == 1
        asked.append((tenant, thread))
        return True

    world.holds = holds
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await _reached(world, first, run)
    await first.lose()
    second = await _next(world, gateway, end_calls=end_calls)
    assert (await second.status(run, "completed", "failed")).status == "completed"
    assert asked == ends


async def test_no_call_begins_once_the_lease_is_over(world: Held, gateway: Make) -> None:
    over = False
    only = gateway("gw_1", lease_over=lambda: over)
    await only.serve()
    infer = world.infer

    async def answers_late(request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        nonlocal over
        over = True
        return await infer(request, on_delta)

    world.infer = answers_late  # type: ignore[method-assign]
    await only.status(await only.start(), "completed", "failed")
    assert world.files.files == {}


async def test_what_is_written_twice_of_a_run_is_there_once(world: Held) -> None:
    store = Store(world.database)
    run = await store.add_run(await store.thread("acme", "t"), NewRun(agent="default", task="x", policy_version="p"))
    claim, started = Claim(run.id), LoggedEvent(1, "run_started", 1, "{}")
    stop = {"hook": "h", "rule": "r", "reason": "x"}
    finished = Event("run_finished", {"status": "completed", "stop": stop, "answer": ""})
    last = RunWrite(events=[LoggedEvent(2, "run_finished", 2, json.dumps(finished.payload))], finished=finished)
    # A commit whose connection is lost may have been done: then it is done again.
    for write in (RunWrite(events=[started], checkpoint="{}"), last):
        await store.write_run(claim, write)
        await store.write_run(claim, write)
    assert [event.sequence for event in await store.events_of(run.id, 1, 9)] == [1, 2]
    rows = await world.database.rows(select(audit_records.c.kind).where(audit_records.c.run_id == run.id))
    assert sorted(row.kind for row in rows) == ["run_finished", "run_started"]
    await world.database.write((update(runs_table).values(epoch=1), None))
    with pytest.raises(LeaseLost):
        await store.write_run(claim, last)
