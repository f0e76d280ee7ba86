"""Whose key started a run: all that the run does is recorded under it, on any host, and its runs are found by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import select

from gateway.credentials.caller import CALLER, Caller
from gateway.storage.entities import Run
from gateway.storage.key_store import KeyStore
from gateway.storage.tables import audit_records
from gateway.storage.thread_store import RunFilter, ThreadStore
from tests.unit.agent.fakes import says
from tests.unit.gateway.runs.test_taking_over import Gateway, Held, Make, gateway, world
from tests.unit.gateway.runs.test_waiting_runs import Host, World, a_policy, host, writes

__all__ = ["gateway", "host", "world"]
KEY = "alk_ab3dX9Qz"


async def _actors(world: World, run_id: str) -> list[tuple[str, str, str]]:
    columns = audit_records.c
    query = select(columns.kind, columns.outcome, columns.actor).where(columns.run_id == run_id)
    return [(row.kind, row.outcome, row.actor) for row in await world.database.rows(query.order_by(columns.sequence))]


async def _as_key(host: Host) -> str:
    async def start() -> str:
        CALLER.set(Caller("key_1", KEY))
        return (await host.start()).id

    return await asyncio.create_task(start())  # as an RPC: with a variable of its own


async def _taken_over(world: Held, gateway: Make) -> tuple[Gateway, Run]:
    """Lose the gateway of a run where the world holds it; return the one that goes on, and the run."""
    first = gateway("gw_1")
    await first.serve()
    run_id = await _as_key(first)
    async with asyncio.timeout(20):
        await world.reached.wait()
    await first.lose()
    world.holds = ""
    second = gateway("gw_2")
    await second.serve()
    run = await second.store.run("acme", run_id)
    assert run is not None
    return second, run


async def test_the_calls_of_a_run_that_was_taken_over_are_recorded_as_the_starters(world: Held, gateway: Make) -> None:
    world.script = [says("", writes()), says("", writes(path="/workspace/b")), says("Written.")]
    world.holds = "answer 2"
    second, run = await _taken_over(world, gateway)
    assert run.started_by == KEY
    await second.status(run, "completed")
    calls = [actor for kind, _, actor in await _actors(world, run.id) if kind == "tool_call"]
    assert calls == [KEY, KEY]


async def test_a_call_that_was_interrupted_is_recorded_as_the_starters(world: Held, gateway: Make) -> None:
    world.holds = "write"
    second, run = await _taken_over(world, gateway)
    await second.status(run, "completed")
    assert ("tool_call", "interrupted", KEY) in await _actors(world, run.id)


async def test_a_run_that_waited_is_traced_with_its_question_its_answer_and_its_starter(
    world: Held, host: Callable[..., Host]
) -> None:
    world.put_in_force("asks", a_policy())
    one = host()
    run_id = await _as_key(one)
    run = await one.store.run("acme", run_id)
    assert run is not None
    await one.status(run, "waiting")
    await one.answer((await one.pending(run))[0])
    await one.status(run, "completed")
    assert await _actors(world, run_id) == [
        ("run_started", "", KEY),
        ("tool_call", "waiting", KEY),
        ("approval_resolved", "approved", "key"),
        ("tool_call", "completed", KEY),
        ("run_finished", "completed", "gateway"),
    ]


async def test_a_keys_runs_are_found_by_it_and_no_others(world: Held, host: Callable[..., Host]) -> None:
    one = host()
    run_id = await _as_key(one)
    run = await one.store.run("acme", run_id)
    assert run is not None
    await one.status(run, "completed")
    threads = ThreadStore(world.database)
    for started_by, found in ((KEY, [run_id]), ("alk_other", []), ("", [run_id])):
        listed = await threads.runs("acme", RunFilter(started_by=started_by), before=None, limit=9)
        assert [run.id for run in listed] == found


@pytest.mark.parametrize("waits", [True, False])
async def test_all_that_a_key_has_under_way_is_ended_by_the_database_alone(
    world: Held, host: Callable[..., Host], *, waits: bool
) -> None:
    world.put_in_force("asks", a_policy("ask" if waits else "allow"))
    world.holds = "" if waits else "write"
    one, keys = host(), KeyStore(world.database)
    run_id = await _as_key(one)
    run = await one.store.run("acme", run_id)
    assert run is not None
    if waits:
        await one.status(run, "waiting")
    else:
        async with asyncio.timeout(20):
            await world.reached.wait()
    assert await keys.runs_of("acme", KEY) == 1
    assert (await keys.runs_of("acme", "alk_other"), await keys.runs_of("beta", KEY)) == (0, 0)
    assert await keys.cancel_runs("acme", KEY, by="alk_operator") == 1
    await one.status(run, "cancelled")
    assert await keys.cancel_runs("acme", KEY, by="alk_operator") == 0
    async with asyncio.timeout(20):
        while await one.pending(run):  # what it asked is taken back after its end
            await asyncio.sleep(0.01)
    reported = await _actors(world, run_id)
    assert [actor for kind, _, actor in reported if kind == "run_cancelled"] == ["alk_operator"]
    assert reported[-1][:2] == ("run_finished", "cancelled")
