"""kill -9 at fifty seeded moments of runs with side effects: every event once and in order, no call twice, an end.

Five runs are under way at once, so that each of ten kills meets five of them, each somewhere else. On SQLite the
gateway that was killed comes back; on PostgreSQL another one takes the runs over, and the one that was killed comes
back as the other. A moment is measured from a run's progress, and drawn by a seeded generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from agent.models.scripted_model_server import Call, Received, ScriptedModelServer, Turn
from gateway.client import Client, Event
from gateway.errors import Unavailable
from gateway.storage.database import Database
from gateway.storage.tables import runs
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, make_home, served

KILLS = int(os.environ.get("AIRLOCK_KILLS", "10"))
THREADS = ("t0", "t1", "t2", "t3", "t4")
ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
LIMITS = {"steps": 10_000, "tool_calls": 100_000, "output_tokens": 10_000_000, "run_s": 3600}


class Endless:
    """A model that makes calls with effects, each with an id that is never given again, until it is told to stop."""

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
    home.configure(model={"base_url": model.base_url, "name": "scripted"}, recovery={"lease_s": 2.0}, **sections)
    policy = directory / "policies" / "default.yaml"
    document = {**yaml.safe_load(policy.read_text(encoding="utf-8")), "limits": LIMITS}
    policy.write_text(yaml.safe_dump(document), encoding="utf-8")
    return home


class Run:
    """The run, as its row tells of it."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self.id = run_id

    async def row(self) -> tuple[int, str, str | None]:
        query = select(runs.c.last_sequence, runs.c.status, runs.c.gateway).where(runs.c.id == self.id)
        while True:
            with contextlib.suppress(Unavailable):
                return tuple((await self._database.rows(query))[0])  # type: ignore[return-value]

    async def progress(self, past: int) -> int:
        """Return the number of the newest event once there is one past that number."""
        async with asyncio.timeout(90):
            while True:
                sequence, status, _ = await self.row()
                assert status == "running"
                if sequence > past:
                    return sequence
                await asyncio.sleep(0.02)


class Runs:
    """Runs under way at once, and where they were at the last kill."""

    def __init__(self, database: Database, seed: int) -> None:
        self._moments = random.Random(seed)
        self._database = database
        self.all: list[Run] = []
        self._at: list[int] = []

    async def start(self, client: Client) -> None:
        made = [await client.start_run("go on", thread=thread) for thread in THREADS]
        self.all = [Run(self._database, run.id) for run in made]
        self._at = [0] * len(made)

    async def moment(self) -> None:
        """Return at the next moment to kill at: when all have gone on, and one of them somewhat further."""
        await asyncio.gather(*(run.progress(at) for run, at in zip(self.all, self._at, strict=True)))
        n = self._moments.randrange(len(self.all))
        await self.all[n].progress((await self.all[n].row())[0] + self._moments.randint(0, 12))
        await asyncio.sleep(self._moments.uniform(0, 0.2))

    async def killed(self) -> None:
        self._at = [(await run.row())[0] for run in self.all]

    async def check(self, client: Client) -> None:
        for run, thread in zip(self.all, THREADS, strict=True):
            await _check(client, thread, await _events(client, run.id), KILLS)


async def _events(client: Client, run_id: str) -> list[Event]:
    async with asyncio.timeout(90):
        return [event async for event in client.watch_run(run_id)]


async def _check(client: Client, thread: str, events: list[Event], taken_over: int) -> None:
    """Look at all that must be true of the run at its end."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "run_finished"
    assert (events[-1].payload["status"], events[-1].payload["stop"]["rule"]) == ("completed", "stop")
    resumed = [event.payload["because"] for event in events if event.type == "run_resumed"]
    assert set(resumed) == {"gateway_lost"}
    # One that was killed before it said so has taken it over as well.
    assert len(resumed) >= taken_over * 0.5
    told = Counter(
        (event.type, event.payload.get("call_id", event.payload.get("step")))
        for event in events
        if event.type in ("tool_call_started", "hook_verdict", "tool_call_finished", "step_started", "step_finished")
    )
    assert {key: times for key, times in told.items() if times != 1} == {}
    started = {event.payload["call_id"]: event.payload for event in events if event.type == "tool_call_started"}
    finished = {event.payload["call_id"]: event.payload for event in events if event.type == "tool_call_finished"}
    assert started.keys() == finished.keys()
    outcomes = Counter(call["outcome"] for call in finished.values())
    assert outcomes.keys() <= {"exited", "completed", "interrupted"}, outcomes
    assert outcomes["exited"], outcomes
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
    answered = [json.loads(json.dumps(event.payload)) for event in events if event.type == "model_finished"]
    assert [call["id"] for answer in answered for call in answer["tool_calls"]] == list(started)


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
    runs_ = Runs(database, 6)
    for _ in range(KILLS):
        with served(home, ENV) as gateway:
            if not runs_.all:
                async with Client(gateway.address, home.key) as client:
                    await runs_.start(client)
            await runs_.moment()
            gateway.kill()
            await runs_.killed()
    endless.stopping = True
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as client:
            await runs_.check(client)
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
    runs_ = Runs(database, 7)
    async with contextlib.AsyncExitStack() as last:
        lives = [last.enter_context(contextlib.ExitStack()) for _ in homes]
        gateways = [life.enter_context(served(home, ENV)) for life, home in zip(lives, homes, strict=True)]
        async with Client(gateways[0].address, key) as client:
            await runs_.start(client)
        for _ in range(KILLS):
            await runs_.moment()
            # As a rule it has all runs, for it alone served when they were taken over the last time.
            _, _, host = await runs_.all[0].row()
            killed = next((n for n, home in enumerate(homes) if _process_id(home) == host), 0)
            gateways[killed].kill()
            await runs_.killed()
            lives[killed].close()
            gateways[killed] = lives[killed].enter_context(served(homes[killed], ENV))
        endless.stopping = True
        async with Client(gateways[0].address, key) as client:
            await runs_.check(client)
    await database.close()
    assert model.failures == []


def _process_id(home: Home) -> str:
    """Return the id of the process that serves a home."""
    return (home.config.parent / "state" / "slot-0").read_text(encoding="ascii").strip()
