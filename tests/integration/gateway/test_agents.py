"""Agents configured in YAML, hosted by a real gateway: capabilities, threads, tenants and subagents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client, Event
from gateway.errors import InvalidArgument, Misconfigured
from tests.gateway_process import Home, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
NO_COMMANDS = """\
version: 1
rules:
  - {id: files, tools: [ls, read_file], paths: [/workspace/**], effect: allow, reason: to look around}
  - {id: no-commands, tools: [execute], effect: deny, reason: nothing is run here}
  - {id: subagents, tools: [spawn_subagent], effect: allow, reason: they may help}
"""
SKILL = b"---\nname: greet\ndescription: how to greet people here\n---\nSay ahoy.\n"


def _worker(model: ScriptedModelServer) -> dict[str, Any]:
    """Return an agent with most capabilities, whose subagent asks a model of its own."""
    reader = {
        "description": "looks things up",
        "system_prompt": "You look things up.",
        "tools": ["ls", "execute"],
        "model": {"base_url": model.base_url, "name": "reader"},
        "steps": 4,
    }
    return {
        "system_prompt": "You work.",
        "capabilities": {
            "filesystem": None,
            "bash": {"timeout_s": 30, "deny": [["git", "push"]]},
            "todos": None,
            "metadata": None,
            "memory": None,
            "skills": {"paths": ["/workspace/skills"]},
            "structured_output": {
                "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                "retries": 1,
            },
            "subagents": {"definitions": {"reader": reader}},
            "tracing": None,
        },
    }


async def _home(directory: Path, model: ScriptedModelServer, **sections: Any) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    settings = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 10, "max_output_tokens": 500}
    home.configure(model={"base_url": model.base_url, "name": "scripted", **settings}, **sections)
    return home


async def _finished(airlock: Client, task: str, *, agent: str = "worker") -> list[Event]:
    return [event async for event in airlock.run(task, thread="t", agent=agent)]


def _calls(events: list[Event]) -> dict[str, dict[str, Any]]:
    return {event.payload["name"]: event.payload for event in events if event.type == "tool_call_finished"}


async def test_an_agent_of_the_configuration_works_and_its_thread_remembers(tmp_path: Path, database_url: str) -> None:
    todos = [
        {"id": "1", "title": "read the manual", "status": "done"},
        {"id": "2", "title": "paint it", "status": "pending"},
    ]
    turns = [
        Turn(
            calls=(
                Call("write_todos", {"todos": todos}),
                Call("metadata_write", {"key": "colour", "value": {"name": "blue"}}),
                Call("spawn_subagent", {"name": "reader", "task": "what is there?"}),
            )
        ),
        Turn(expect=["1 pending", "colour", "a file and a skill"], say="not what was asked for"),
        Turn(expect=["does not fit"], say='{"n": 1}'),
        Turn(calls=(Call("metadata_read", {"key": "colour"}), Call("execute", {"command": "git push"}))),
        Turn(expect=['{"name": "blue"}', "command_policy"], say='{"n": 2}'),
    ]
    reader = [
        Turn(expect=["what is there?"], calls=(Call("execute", {"command": "ls /workspace"}),)),
        Turn(expect=["AGENTS.md"], say="a file and a skill"),
    ]
    async with ScriptedModelServer(turns, by_model={"reader": reader}) as model:
        home = await _home(tmp_path / "home", model, agents={"worker": _worker(model)})
        home.store_in(database_url)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                await airlock.write_file("t", "/workspace/AGENTS.md", b"The boat is called Nora.")
                await airlock.write_file("t", "/workspace/skills/greet/SKILL.md", SKILL)
                first = await _finished(airlock, "begin")
                last = first[-1].payload
                assert (last["status"], last["answer"]) == ("completed", '{"n": 1}'), last
                assert (last["stop"]["hook"], last["stop"]["rule"]) == ("structured_output", "valid")
                assert last["usage"]["cost_usd"] > 0
                assert model.requests[0]["max_tokens"] == 500
                assert model.failures == []
                calls = _calls(first)
                assert {calls[name]["rule"] for name in ("write_todos", "metadata_write", "spawn_subagent")} == {
                    "agent-tools"
                }
                assert calls["execute"]["rule"] == "any-command"
                (spawned,) = [event.payload for event in first if event.type == "subagent_started"]
                assert spawned["within"] == calls["spawn_subagent"]["call_id"]
                # What the model was shown: the memory, the catalog, the subagent, and after its first step the todos.
                system = model.requests[0]["messages"][0]["content"]
                assert "The boat is called Nora." in system
                assert "greet" in system
                assert "how to greet people here" in system
                assert "todos>" not in str(model.requests[0])

            # A subagent's tools are journaled as those of the run, and what it said is not said in the thread.
            ((run_id,),) = home.rows("select id from runs")
            journaled = home.rows("select name, run_id from tool_calls where run_id is not null")
            assert ("execute", run_id) in journaled
            assert {of_run for _, of_run in journaled} == {run_id}
            kept = " ".join(message for (message,) in home.rows("select message from messages order by position"))
            assert "begin" in kept
            assert "what is there?" in kept  # as the argument of the call
            assert "You look things up" not in kept
            assert "ls /workspace" not in kept

        # Another gateway process: what the thread remembers is in the database.
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                before = len(model.requests)
                last = (await _finished(airlock, "go on"))[-1].payload
                assert (last["status"], last["answer"]) == ("completed", '{"n": 2}'), last
                reminder = model.requests[before]["messages"][-1]["content"]
                assert "[ ] 2: paint it" in reminder
                assert "[x] 1: read the manual" in reminder
        assert model.failures == []


async def test_a_tenant_can_name_its_own_agents_and_those_of_all_and_no_others(tmp_path: Path) -> None:
    async with ScriptedModelServer([Turn(say="hello")]) as model:
        home = await _home(tmp_path / "home", model)
        other = home.add_tenant("other")
        home.configure(
            agents={"default": {"model": {"api_key_env": "NO_SUCH_KEY"}}, "helper": {"system_prompt": "shared"}},
            tenants={
                "default": {
                    "policy": "policies/default.yaml",
                    "agents": {"helper": {"system_prompt": "own"}, "secret-boat": {}},
                },
                "other": {"policy": "policies/other.yaml", "agents": {"painter": {}}},
            },
        )
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as ours, Client(gateway.address, other) as theirs:
                with pytest.raises(InvalidArgument, match=r"'nobody' is not one of default, helper, secret-boat$"):
                    await ours.start_run("x", agent="nobody")
                with pytest.raises(InvalidArgument, match=r"'secret-boat' is not one of default, helper, painter$"):
                    await theirs.start_run("x", agent="secret-boat")
                for client, prompt in ((ours, "own"), (theirs, "shared")):
                    events = await _finished(client, "x", agent="helper")
                    assert events[-1].payload["answer"] == "hello"
                    assert model.requests[-1]["messages"][0] == {"role": "system", "content": prompt}
                # A model that cannot be asked is reported to the caller that starts the run, and the thread stays free.
                for _ in range(2):
                    with pytest.raises(Misconfigured, match="NO_SUCH_KEY"):
                        await ours.start_run("x", thread="t")
                # Services bring their own loop: the agents' tools are not theirs.
                assert len(await ours.list_tools()) == 8


async def test_what_a_policy_denies_is_denied_in_a_subagent_too(tmp_path: Path) -> None:
    turns = [
        Turn(calls=(Call("spawn_subagent", {"name": "reader", "task": "run it"}),)),
        Turn(expect=["it was refused"], say='{"n": 1}'),
    ]
    reader = [
        Turn(calls=(Call("execute", {"command": "touch /workspace/made"}), Call("ls", {"path": "/workspace"}))),
        Turn(
            expect=["rule no-commands of policy: nothing is run here", lambda listed: "made" not in listed],
            say="it was refused",
        ),
    ]
    async with ScriptedModelServer(turns, by_model={"reader": reader}) as model:
        home = await _home(tmp_path / "home", model, agents={"worker": _worker(model)})
        key = home.add_tenant("guarded", NO_COMMANDS)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as airlock:
                events = await _finished(airlock, "begin")
                assert events[-1].payload["status"] == "completed", events[-1].payload
                refused = _calls(events)["execute"]
                assert (refused["verdict"], refused["rule"], refused["outcome"]) == ("deny", "no-commands", "blocked")
        assert model.failures == []
        journaled = home.rows("select name, state, rule from tool_calls where name = 'execute'")
        assert journaled == [("execute", "blocked", "no-commands")]
