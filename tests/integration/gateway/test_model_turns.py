"""A real gateway and an endpoint that keeps it waiting, or gives half an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from gateway.client import Client, Event
from tests.gateway_process import Home, airlock, make_home, served
from tests.unit.agent.models.asking import sse
from tests.unit.agent.models.raw_endpoint import answering, serving

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}


async def _home(directory: Path, base_url: str, **sections: Any) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    home.configure(model={"base_url": base_url, "name": "m"}, sandbox={"engine": "memory"}, **sections)
    return home


async def test_an_inference_that_waits_for_its_turn_says_so_and_is_no_time_of_the_model(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await answering(sse("done"), content_type="text/event-stream")(writer)

    async def follow(airlock: Client, thread: str, seen: list[Event]) -> None:
        async for event in airlock.run("do it", thread=thread):
            seen.append(event)
            if event.type == "model_waiting":
                release.set()

    first: list[Event] = []
    second: list[Event] = []
    async with serving(held) as endpoint:
        tenants = {"default": {"policy": "policies/default.yaml", "concurrent_inferences": 1}}
        home = await _home(tmp_path / "home", endpoint.base_url, tenants=tenants)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                running = asyncio.create_task(follow(airlock, "a", first))
                async with asyncio.timeout(60):
                    while not endpoint.requests:
                        await asyncio.sleep(0.01)
                    await follow(airlock, "b", second)
                    await running
    assert not [event for event in first if event.type == "model_waiting"]
    (waited,) = [event.payload for event in second if event.type == "model_waiting"]
    assert "concurrent_inferences: 1" in str(waited["reason"])
    assert first[-1].payload["model_wait_ms"] == 0
    assert float(str(second[-1].payload["model_wait_ms"])) > 0
    assert second[-1].payload["status"] == "completed"


async def test_a_cut_answer_is_a_status_and_an_exit_code_of_its_own(tmp_path: Path) -> None:
    async with ScriptedModelServer([Turn(say="The answer is", finish_reason="length")]) as model:
        home = await _home(tmp_path / "home", model.base_url)
        with served(home, ENV) as gateway:
            env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
            ran = await asyncio.to_thread(airlock, "run", "what is it?", env=env, check=False)
            assert (ran.returncode, "model_cut" in ran.stdout) == (4, True), ran.stdout + ran.stderr
            async with Client(gateway.address, home.key) as client:
                (run,) = [run async for run in client.list_runs()]
                assert (run.status, run.stop["rule"]) == ("stopped", "model_cut")


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
async def test_reasoning_is_stored_only_where_the_model_says_so_and_without_secrets(api: str, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 9
    turns = [
        Turn(reasoning=f"The token is {token}.", calls=[Call("ls", {"path": "/workspace"})]),
        Turn(reasoning="Now I know.", say="done"),
    ]
    home = await _home(tmp_path / "home", "http://127.0.0.1:1/v1")
    shown = []
    for store in (False, True):
        async with ScriptedModelServer(turns) as model:
            settings = {"base_url": model.base_url, "name": "m", "api": api, "stream": False}
            home.configure(model=settings | ({"store_reasoning": True} if store else {}))
            with served(home, ENV) as gateway:
                async with Client(gateway.address, home.key) as airlock:
                    events = [event async for event in airlock.run("go", thread=f"t{store}")]
            assert events[-1].payload["status"] == "completed", events[-1].payload
            # In either case it is kept with the thread, where the endpoint wants it back.
            assert token in json.dumps(model.requests[1])
        finished = [event.payload["reasoning_chars"] for event in events if event.type == "model_finished"]
        assert finished == [len(turn.reasoning) for turn in turns]
        shown.append([event.payload["text"] for event in events if event.type == "reasoning_delta"])
        assert token not in str([event.payload for event in events])
    redacted = turns[0].reasoning.replace(token[4:], "[redacted github-token]".ljust(36, "*"))
    assert shown == [[], [redacted, "Now I know."]]


async def test_an_attempt_that_failed_is_shown_with_its_cause_its_setting_and_what_is_tried_next(
    tmp_path: Path,
) -> None:
    fault = Fault("status", status=503, body={"error": {"code": 503, "message": "Loading model"}})
    async with ScriptedModelServer([Turn(say="loaded", fault=fault)]) as model:
        home = await _home(tmp_path / "home", model.base_url)
        with served(home, ENV) as gateway:
            env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key, "COLUMNS": "1000"}
            ran = await asyncio.to_thread(airlock, "run", "load it", env=env)
    shown = ran.stdout.replace("\n", " ")
    assert (
        f"the model failed: {model.base_url} answered HTTP 503: Loading model; the server is still loading the model"
        in shown
    )
    assert "it is asked again in 0.5 s, attempt 2 of 3" in shown
    assert "loaded" in shown
