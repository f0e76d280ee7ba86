"""kill -9 at fifty seeded points of runs with side effects: every event once and in order, no call twice, an end.

Five runs are under way at once, and a kill meets each somewhere else: a point is one kill of one run, and where that
run was is recorded. On SQLite the gateway that was killed comes back; on PostgreSQL another one takes the runs over,
and the one that was killed comes back as the other. A moment is measured from the runs' progress, and drawn by a
seeded generator; kills go on past the fifty points until some interrupted a call and some met a run between calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.models.scripted_model_server import Call, Received, ScriptedModelServer, Turn
from gateway.client import Client, Event
from gateway.storage.database import Database
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, make_home, served
from tests.integration.gateway.killed_runs import KilledRuns

KILLS = int(os.environ.get("AIRLOCK_KILLS", "6"))
THREADS = ("t0", "t1", "t2", "t3", "t4")
POINTS = KILLS * len(THREADS)
ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
LIMITS = {"steps": 10_000, "tool_calls": 100_000, "output_tokens": 10_000_000, "run_s": 3600}


class Endless:
    """A model that makes calls with effects, each with an id that is never given again, until it is stopped."""

    def __init__(self) -> None:
        self.stopping = False
        self._numbers = itertools.count(1)

    def calls(self, received: Received) -> tuple[Call, ...]:
        del received
        if self.stopping:
            return ()
        number = next(self._numbers)
        if number % 3 == 0:
            return (
                Call("write_file", {"path": "/workspace/state", "content": f"{number}"}),
                Call("ls", {"path": "/workspace"}),
            )
        return (
            Call("execute", {"command": f"echo id-{number}-a >> log; sleep 0.02"}),
            Call("execute", {"command": f"echo id-{number}-b >> log"}),
        )

    def turns(self) -> list[Turn]:
        return [Turn(say="On.", calls=self.calls)] * 30_000


async def _home(directory: Path, model: ScriptedModelServer, **sections: Any) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    # The usual lease: with a shorter one a machine that is busy elsewhere loses it again and again.
    home.configure(model={"base_url": model.base_url, "name": "scripted"}, **sections)
    policy = directory / "policies" / "default.yaml"
    document = {**yaml.safe_load(policy.read_text(encoding="utf-8")), "limits": LIMITS}
    policy.write_text(yaml.safe_dump(document), encoding="utf-8")
    return home


async def _check_all(killed: KilledRuns, client: Client) -> None:
    points = killed.points
    assert killed.enough(POINTS), points
    # A run goes on between two kills, and kills meet it anywhere in its steps.
    assert len({(point.run, point.sequence) for point in points}) >= 0.8 * len(points)
    assert len({(point.after, bool(point.in_flight)) for point in points}) >= 3, points
    for run_id, thread in zip(killed.ids, THREADS, strict=True):
        reported = await _events(client, run_id)
        lost = frozenset[str]().union(*(point.interrupts for point in points if point.run == run_id))
        await _check(client, thread, reported, killed.kills_of(run_id), lost)


async def _events(client: Client, run_id: str) -> list[Event]:
    async with asyncio.timeout(90):
        return [event async for event in client.watch_run(run_id)]


async def _check(client: Client, thread: str, events: list[Event], kills: int, lost: AbstractSet[str]) -> None:
    """Look at all that must be true of the run at its end."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "run_finished"
    assert (events[-1].payload["status"], events[-1].payload["stop"]["rule"]) == ("completed", "stop")
    resumed = [event.payload["because"] for event in events if event.type == "run_resumed"]
    assert set(resumed) == {"gateway_lost"}
    assert len(resumed) >= kills
    reported = Counter(
        (event.type, event.payload.get("call_id", event.payload.get("step")))
        for event in events
        if event.type in ("tool_call_started", "hook_verdict", "tool_call_finished", "step_started", "step_finished")
    )
    assert {key: times for key, times in reported.items() if times != 1} == {}
    started = {event.payload["call_id"]: event.payload for event in events if event.type == "tool_call_started"}
    finished = {event.payload["call_id"]: event.payload for event in events if event.type == "tool_call_finished"}
    assert started.keys() == finished.keys()
    outcomes = Counter(call["outcome"] for call in finished.values())
    odd = [call for call in finished.values() if call["outcome"] not in {"exited", "completed", "interrupted"}]
    assert odd == []
    assert outcomes["exited"], outcomes
    assert {call_id: finished[call_id]["outcome"] for call_id in lost} == dict.fromkeys(lost, "interrupted")
    written = await client.call_tool("execute", {"command": "cat /workspace/log"}, thread=thread)
    lines = Counter(written.content.split())
    assert {line: times for line, times in lines.items() if times != 1} == {}
    for call_id, call in finished.items():
        if started[call_id]["name"] != "execute":
            continue
        line = started[call_id]["arguments"]["command"].split()[1]
        if call["outcome"] == "exited":
            assert lines.pop(line) == 1
        else:
            assert call["outcome"] == "interrupted"
            assert "not run again" in call["content"]
            lines.pop(line, None)
    assert lines == {}
    await _check_file(client, thread, started, finished)
    answered = [json.loads(json.dumps(event.payload)) for event in events if event.type == "model_finished"]
    assert [call["id"] for answer in answered for call in answer["tool_calls"]] == list(started)


async def _check_file(
    client: Client, thread: str, started: dict[str, dict[str, Any]], finished: dict[str, dict[str, Any]]
) -> None:
    """See that the file has what the last finished call wrote, or one that came after it and was interrupted."""
    possible = {""}
    for call_id, call in started.items():
        if call["name"] == "write_file":
            content = call["arguments"]["content"]
            possible = {content} if finished[call_id]["outcome"] == "completed" else {*possible, content}
    written = await client.call_tool("execute", {"command": "touch state; cat state"}, thread=thread)
    assert written.content.strip() in possible


@pytest.fixture
async def endless() -> Endless:
    return Endless()


@pytest.fixture
async def model(endless: Endless) -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(endless.turns()) as server:
        yield server


async def test_a_gateway_that_is_killed_again_and_again_and_comes_back_loses_and_repeats_nothing(
    tmp_path: Path, endless: Endless, model: ScriptedModelServer
) -> None:
    home = await _home(tmp_path / "home", model)
    database = await Database.open(f"sqlite:///{tmp_path}/home/state/airlock.db")
    killed = KilledRuns(database, 6)
    for _ in range(2 * KILLS):
        with served(home, ENV) as gateway:
            if not killed.ids:
                async with Client(gateway.address, home.key) as client:
                    await killed.start(client, THREADS)
            await killed.moment()
            gateway.kill()
            await killed.killed(_process_id(home))
        if killed.enough(POINTS):
            break
    endless.stopping = True
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as client:
            await _check_all(killed, client)
    await database.close()
    assert model.failures == []
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_of_two_gateways_the_one_that_lives_takes_the_runs_over_again_and_again(
    tmp_path: Path, endless: Endless, model: ScriptedModelServer, postgres_url: str
) -> None:
    shared = {"database_url": postgres_url}
    homes = [await _home(tmp_path / name, model, **shared) for name in ("one", "two")]
    for home in homes:
        home.configure(sandbox={"channel_dir": str(tmp_path / "channels")})
    # A key of either is a key of both: they are in the database. So `init` of the second has made one as well.
    made = await asyncio.to_thread(
        airlock, "key", "create", "--tenant", "default", "--config", str(homes[0].config), "--json"
    )
    key = str(json.loads(made.stdout)["key"])
    database = await Database.open(postgres_url)
    killed = KilledRuns(database, 7)
    async with contextlib.AsyncExitStack() as last:
        lives = [last.enter_context(contextlib.ExitStack()) for _ in homes]
        gateways = [life.enter_context(served(home, ENV)) for life, home in zip(lives, homes, strict=True)]
        async with Client(gateways[0].address, key) as client:
            await killed.start(client, THREADS)
        for _ in range(2 * KILLS):
            await killed.moment()
            # As a rule it has all runs, for it alone served when they were taken over the last time.
            host = await killed.host()
            n = next((n for n, home in enumerate(homes) if _process_id(home) == host), 0)
            gateways[n].kill()
            await killed.killed(_process_id(homes[n]))
            lives[n].close()
            gateways[n] = lives[n].enter_context(served(homes[n], ENV))
            if killed.enough(POINTS):
                break
        endless.stopping = True
        async with Client(gateways[0].address, key) as client:
            await _check_all(killed, client)
    await database.close()
    assert model.failures == []


def _process_id(home: Home) -> str:
    """Return the id of the process that serves a home."""
    return (home.config.parent / "state" / "slot-0").read_text(encoding="ascii").strip()
