"""What a gateway that is lost leaves under way: it is not done behind the back of who takes its runs over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client, Event
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
# It does its deed when it is let: as late as the test wants.
WAITS = "touch started; while [ ! -e go ]; do sleep 0.05; done; touch deed"
TURNS = (Turn(calls=(Call("execute", {"command": WAITS}),)), Turn(expect=["interrupted"], say="I see."))


async def _home(directory: Path, model: ScriptedModelServer, *, lease_s: float = 2.0) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    home.configure(model={"base_url": model.base_url, "name": "scripted"}, recovery={"lease_s": lease_s})
    return home


async def _listed(client: Client) -> str:
    return (await client.call_tool("ls", {"path": "/workspace"}, thread="t")).content


async def _started(client: Client) -> None:
    async with asyncio.timeout(60):
        while "started" not in await _listed(client):
            await asyncio.sleep(0.05)


async def test_a_command_of_a_stopped_gateway_does_nothing_once_its_run_was_taken_over(
    tmp_path: Path, postgres_url: str
) -> None:
    async with ScriptedModelServer(list(TURNS)) as model:
        homes = [await _home(tmp_path / name, model) for name in ("one", "two")]
        for home in homes:
            home.configure(database_url=postgres_url, sandbox={"channel_dir": str(tmp_path / "channels")})
        made = await asyncio.to_thread(
            airlock, "key", "create", "--tenant", "default", "--config", str(homes[0].config), "--json"
        )
        key = str(json.loads(made.stdout)["key"])
        with served(homes[0], ENV) as first, served(homes[1], ENV) as second:
            async with Client(first.address, key) as of_first, Client(second.address, key) as of_second:
                run = await of_first.start_run("go on", thread="t")
                await _started(of_first)
                first.process.send_signal(signal.SIGSTOP)
                try:
                    async with asyncio.timeout(90):
                        events = [event async for event in of_second.watch_run(run.id)]
                    await of_second.call_tool("execute", {"command": "touch go; sleep 1"}, thread="t")
                    assert "deed" not in await _listed(of_second)
                finally:
                    first.process.send_signal(signal.SIGCONT)
                assert (events[-1].payload["status"], events[-1].payload["answer"]) == ("completed", "I see.")
                (call,) = [event.payload for event in events if event.type == "tool_call_finished"]
                assert call["outcome"] == "interrupted"
                # It is back, serves, and changes nothing of what was reported.
                listed = await _listed(of_first)
                assert "go" in listed
                assert "deed" not in listed
                assert [event async for event in of_first.watch_run(run.id)] == events
        assert model.failures == []


@pytest.mark.parametrize("end", ["terminated", "killed"])
async def test_the_caller_of_a_task_sees_its_end_though_the_gateway_is_restarted(
    tmp_path: Path, database_url: str, end: str
) -> None:
    async with ScriptedModelServer(list(TURNS)) as model:
        # A gateway with the state directory of a dead process waits for no lease; and with a long one a machine
        # that is busy elsewhere is not taken for a gateway that is lost: the run moves once, exactly.
        home = await _home(tmp_path / "home", model, lease_s=60.0)
        home.store_in(database_url)
        with contextlib.ExitStack() as last:
            life = last.enter_context(contextlib.ExitStack())
            gateway = life.enter_context(served(home, ENV))
            async with Client(gateway.address, home.key) as client:
                events: list[Event] = []
                running = asyncio.create_task(_collect(client, events.append))
                await _started(client)
                if end == "killed":
                    gateway.kill()
                await asyncio.to_thread(life.close)
                life = last.enter_context(contextlib.ExitStack())
                await asyncio.to_thread(life.enter_context, served(home, ENV, "--listen", gateway.address))
                async with asyncio.timeout(90):
                    await running
                (run,) = [run async for run in client.list_runs(thread="t")]
                seen_again = [event async for event in client.watch_run(run.id)]
                # What the lost gateway had begun does nothing any more, though it is let now.
                await client.call_tool("execute", {"command": "touch go; sleep 1"}, thread="t")
                assert "deed" not in await _listed(client)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert seen_again == events
        assert events[-1].type == "run_finished"
        assert (events[-1].payload["status"], events[-1].payload["answer"]) == ("completed", "I see.")
        resumed = [event.payload["because"] for event in events if event.type == "run_resumed"]
        assert resumed == ["gateway_stopped" if end == "terminated" else "gateway_lost"]
        calls = [event.payload["outcome"] for event in events if event.type == "tool_call_finished"]
        assert calls == ["interrupted"]
        assert len(model.requests) == len(TURNS), "no answer of the model was asked for twice"
        assert model.failures == []
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def _collect(client: Client, take: Callable[[Event], None]) -> None:
    async for event in client.run("go on", thread="t"):
        take(event)
