"""Runs hosted by a real gateway, with the real openai client against the scripted model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from gateway.client import Client, Event
from gateway.errors import NotFound, ThreadBusy, TooLarge
from gateway.runs.checkpoints import THREAD_LIMIT_CHARS
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served

SLEEP = "touch started; sleep 62"
LOOK = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"
ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}


async def _model_home(directory: Path, model: ScriptedModelServer, database_url: str | None = None) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    if database_url is not None:
        home.store_in(database_url)
    home.configure(model={"base_url": model.base_url, "name": "scripted"})
    return home


def _types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


@pytest.fixture
async def script() -> AsyncIterator[ScriptedModelServer]:
    turns = [
        Turn(say="I look.", calls=(Call("execute", {"command": "echo hello"}), Call("ls", {"path": "/workspace"}))),
        Turn(say="It said hello."),
    ]
    async with ScriptedModelServer(turns) as server:
        yield server


async def test_a_run_is_its_event_log_and_survives_a_restart(
    tmp_path: Path, database_url: str, script: ScriptedModelServer
) -> None:
    home = await _model_home(tmp_path / "home", script, database_url)
    other = home.add_tenant("other")
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as airlock, Client(gateway.address, other) as stranger:
            run = await airlock.start_run("say hello", thread="t")
            events = [event async for event in airlock.watch_run(run.id)]
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            assert (_types(events)[0], _types(events)[-1]) == ("run_started", "run_finished")
            last = events[-1].payload
            assert last["status"] == "completed", last
            assert set(last["stop"]) == {"hook", "rule", "reason"}
            assert last["answer"] == "It said hello."
            calls = [event.payload for event in events if event.type == "tool_call_finished"]
            assert [call["name"] for call in calls] == ["execute", "ls"]
            assert all(call["verdict"] == "allow" and call["rule"] for call in calls)
            later = [event async for event in airlock.watch_run(run.id, from_sequence=3)]
            assert later == events[2:]
            for attempt in (stranger.get_run, stranger.cancel_run):
                with pytest.raises(NotFound):
                    await attempt(run.id)
            with pytest.raises(NotFound):
                _ = [event async for event in stranger.watch_run(run.id)]
    assert containers_of(home.instance) == []
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as airlock:
            assert [event async for event in airlock.watch_run(run.id)] == events
            assert (await airlock.get_run(run.id)).status == "completed"


async def test_cancelling_a_run_reaches_the_process(tmp_path: Path) -> None:
    async with ScriptedModelServer([Turn(calls=(Call("execute", {"command": SLEEP}),))]) as model:
        home = await _model_home(tmp_path / "home", model)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                run = await airlock.start_run("sleep", thread="t")
                async with asyncio.timeout(30):
                    while "started" not in (await airlock.call_tool("ls", {}, thread="t")).content:
                        await asyncio.sleep(0.02)
                await airlock.cancel_run(run.id)
                events = [event async for event in airlock.watch_run(run.id)]
                assert events[-1].payload["status"] == "cancelled"
                assert "sleep 62" not in (await airlock.call_tool("execute", {"command": LOOK}, thread="t")).content
                # Nothing is broken by it: the thread takes the next call, and cancelling again changes nothing.
                assert (await airlock.cancel_run(run.id)).status == "cancelled"


async def test_a_gateway_that_was_killed_goes_on_with_its_runs_and_reports_what_was_interrupted(
    tmp_path: Path, database_url: str
) -> None:
    reported = Turn(expect=["interrupted"], say="I see.")
    async with ScriptedModelServer([Turn(calls=(Call("execute", {"command": SLEEP}),)), reported]) as model:
        home = await _model_home(tmp_path / "home", model, database_url)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                run = await airlock.start_run("sleep", thread="t")
                async with asyncio.timeout(30):
                    while "started" not in (await airlock.call_tool("ls", {}, thread="t")).content:
                        await asyncio.sleep(0.02)
            gateway.kill()
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                events = [event async for event in airlock.watch_run(run.id)]
                assert [event.sequence for event in events] == list(range(1, len(events) + 1))
                assert (events[-1].payload["status"], events[-1].payload["answer"]) == ("completed", "I see.")
                (call,) = [event.payload for event in events if event.type == "tool_call_finished"]
                assert call["outcome"] == "interrupted"
                assert (await airlock.call_tool("execute", {"command": "true"}, thread="t")).exit_code == 0
        assert model.failures == []
        assert containers_of(home.instance) == []


@pytest.mark.parametrize("fault", ["drop", "nonsense", "empty"])
async def test_a_model_that_misbehaves_ends_the_run_with_one_clear_reason(
    tmp_path: Path, fault: Literal["drop", "nonsense", "empty"]
) -> None:
    async with ScriptedModelServer([Turn(fault=Fault(fault, times=99))]) as model:
        home = await _model_home(tmp_path / "home", model)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                events = [event async for event in airlock.run("anything", thread="t")]
                last = events[-1].payload
                assert last["status"] == "failed"
                assert last["stop"]["reason"]
                # The thread and the gateway live on.
                assert (await airlock.call_tool("execute", {"command": "true"}, thread="t")).exit_code == 0


async def test_a_second_run_in_a_thread_remembers_the_first(tmp_path: Path) -> None:
    turns = [Turn(say="one"), Turn(say="two")]
    async with ScriptedModelServer(turns) as model:
        home = await _model_home(tmp_path / "home", model)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                answers = []
                for task in ("first", "second"):
                    events = [event async for event in airlock.run(task, thread="t")]
                    answers.append(events[-1].payload["answer"])
                assert answers == ["one", "two"]


async def test_a_thread_with_an_unreadable_message_goes_on_and_one_that_is_too_long_takes_no_run(
    tmp_path: Path, database_url: str
) -> None:
    async with ScriptedModelServer([Turn(say="one"), Turn(say="two")]) as model:
        home = await _model_home(tmp_path / "home", model, database_url)

        def say(position: int, said: str) -> None:
            columns = "thread_id, position, run_id, message"
            row = f"insert into messages ({columns}) select id, :position, 'run_0', :said from threads where name = 't'"
            home.write(row, position=position, said=said)

        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                assert [event async for event in airlock.run("first", thread="t")][-1].payload["answer"] == "one"
                say(2, "nonsense")
                assert [event async for event in airlock.run("second", thread="t")][-1].payload["answer"] == "two"
                say(5, "x" * THREAD_LIMIT_CHARS)
                for _ in range(2):  # a run that is refused leaves the thread free
                    with pytest.raises(TooLarge, match="start a new thread"):
                        await airlock.start_run("third", thread="t")
                assert [event async for event in airlock.run("third", thread="u")][-1].payload["answer"] == "one"


async def test_of_many_runs_started_at_once_in_a_thread_one_is_taken(tmp_path: Path, database_url: str) -> None:
    async with ScriptedModelServer([Turn(calls=(Call("execute", {"command": SLEEP}),))]) as model:
        home = await _model_home(tmp_path / "home", model, database_url)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                answers = await asyncio.gather(
                    *(airlock.start_run("sleep", thread="t") for _ in range(20)), return_exceptions=True
                )
                assert [type(answer).__name__ for answer in answers].count("Run") == 1
                assert sum(isinstance(answer, ThreadBusy) for answer in answers) == 19


@pytest.mark.parametrize("on_stop", ["hand_over", "cancel"])
async def test_a_gateway_that_stops_hands_its_runs_over_or_ends_them_and_leaves_nothing(
    tmp_path: Path, database_url: str, on_stop: str
) -> None:
    reported = Turn(expect=["interrupted"], say="I see.")
    async with ScriptedModelServer([Turn(calls=(Call("execute", {"command": SLEEP}),)), reported]) as model:
        home = await _model_home(tmp_path / "home", model, database_url)
        home.configure(runs={"on_stop": on_stop})
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                run = await airlock.start_run("sleep", thread="t")
                async with asyncio.timeout(30):
                    while "started" not in (await airlock.call_tool("ls", {}, thread="t")).content:
                        await asyncio.sleep(0.02)
        assert containers_of(home.instance) == []
        assert volumes_of(home.instance) == []
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                events = [event async for event in airlock.watch_run(run.id)]
                ended = await airlock.get_run(run.id)
                if on_stop == "cancel":
                    assert (ended.status, ended.stop["rule"]) == ("cancelled", "gateway_stopped")
                else:
                    assert ended.status == "completed"
                    resumed = [event.payload["because"] for event in events if event.type == "run_resumed"]
                    assert resumed == ["gateway_stopped"]


async def test_a_call_is_journaled_before_it_runs_and_interrupted_after_a_kill(
    tmp_path: Path, database_url: str
) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.store_in(database_url)

    def journal() -> list[tuple[str, str, str]]:
        return home.rows("select name, state, arguments from tool_calls order by started_us")

    with served(home) as gateway:
        async with Client(gateway.address, home.key) as airlock:
            await airlock.call_tool("ls", {}, thread="t")
            call = asyncio.create_task(airlock.call_tool("execute", {"command": SLEEP}, thread="t"))
            async with asyncio.timeout(30):
                while "started" not in (await airlock.call_tool("ls", {}, thread="t")).content:
                    await asyncio.sleep(0.02)
            assert ("execute", "executing", '{"command":"touch started; sleep 62"}') in journal()
            assert ("ls", "finished", '{"path":"/workspace"}') in journal()
            gateway.kill()
            await asyncio.gather(call, return_exceptions=True)
    with served(home):
        assert [state for name, state, _ in journal() if name == "execute"] == ["interrupted"]
