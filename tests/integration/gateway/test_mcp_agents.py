"""An agent's MCP servers in runs: what the model is shown, and what an operator accepts."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client, Event
from tests.gateway_process import airlock, make_home, served
from tests.mcp_program import SOURCE

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
POLICY = """\
version: 1
rules:
  - {id: files, tools: [read, write], paths: [/workspace/**], effect: allow, reason: Any file.}
  - {id: commands, tools: [execute], effect: allow, reason: Anything runs.}
  - {id: notes, tools: [notes/*], effect: allow, reason: Notes are harmless.}
"""


async def _run(client: Client, task: str) -> list[Event]:
    return [event async for event in client.run(task, thread="t", agent="default")]


def _call(events: list[Event]) -> Mapping[str, Any]:
    (found,) = [event.payload for event in events if event.type == "tool_call_finished"]
    return found


async def test_a_model_is_shown_what_the_operator_accepted_and_nothing_else(tmp_path: Path) -> None:
    turns = [
        Turn(say="no tools yet"),
        Turn(calls=(Call("notes__echo", {"text": "hello"}),)),
        Turn(expect=["hello"], say="done"),
        Turn(calls=(Call("notes__echo", {"text": "again"}),)),
        Turn(expect=["is not what the operator accepted"], say="done"),
        Turn(calls=(Call("notes__echo", {"text": "again"}),)),
        Turn(expect=["again"], say="done"),
    ]
    async with ScriptedModelServer(turns) as model:
        home = await asyncio.to_thread(make_home, tmp_path / "home")
        (home.config.parent / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
        server = {"command": ["python3", "/workspace/server.py"]}
        home.configure(
            model={"base_url": model.base_url, "name": "scripted"},
            agents={"default": {"mcp": {"servers": {"notes": server}}}},
        )
        with served(home, ENV) as gateway:
            operator = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.make_key("", "operate")}

            async def pins(*arguments: str) -> Any:
                done = await asyncio.to_thread(airlock, "mcp", "pins", *arguments, "--json", env=operator)
                return json.loads(done.stdout)

            async with Client(gateway.address, home.key) as client:
                await client.write_file("t", "/workspace/server.py", SOURCE.encode())
                await _run(client, "begin")
                assert not [tool for tool in _shown(model) if tool.startswith("notes")]
                (seen,) = await pins("list")
                assert (seen["server"], seen["status"]) == ("notes", "new")
                accepted = await pins("accept", "notes", seen["digest"])
                assert accepted["status"] == "pinned"
                assert accepted["accepted_by"]

                called = _call(await _run(client, "call it"))
                assert (called["name"], called["rule"], called["verdict"]) == ("notes/echo", "notes", "allow")
                assert _shown(model)["notes__echo"]["description"] == "Say it again."

                # It says something else now, as after an update of a package.
                await client.stop_sandbox("t")
                await client.write_file("t", "/workspace/mode", b"changed")
                assert _call(await _run(client, "call it again"))["is_error"]
                assert _shown(model)["notes__echo"]["description"] == "Say it again."
                (changed,) = await pins("list", "notes")
                assert changed["status"] == "changed"
                assert [tool["name"] for tool in changed["tools"] if tool["status"] == "changed"] == ["echo"]
                late = await asyncio.to_thread(
                    airlock, "mcp", "pins", "accept", "notes", seen["digest"], env=operator, check=False
                )
                assert late.returncode != 0
                assert "list them again" in late.stderr
                await pins("accept", "notes", changed["digest"])
                assert not _call(await _run(client, "and again"))["is_error"]
                assert "id_rsa" in _shown(model)["notes__echo"]["description"]
                await pins("remove", "notes", "--yes")
                assert await pins("list") == []
            assert model.failures == []


def _shown(model: ScriptedModelServer) -> Mapping[str, Any]:
    return {tool["function"]["name"]: tool["function"] for tool in model.requests[-1]["tools"]}


async def test_the_first_server_of_the_page_shouts(tmp_path: Path) -> None:
    program, configuration, rule = _blocks("python", "yaml")
    commands = [line for block in _blocks("sh") for line in block.splitlines() if line.startswith("airlock ")]
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.configure(**yaml.safe_load(configuration))
    policy = home.config.parent / "policies" / "default.yaml"
    policy.write_text(policy.read_text(encoding="utf-8").replace("rules:\n", f"rules:\n{rule}", 1), encoding="utf-8")
    (tmp_path / "voice.py").write_text(program, encoding="utf-8")
    outputs: list[str] = []
    with served(home) as gateway:
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
        for line in commands:
            digest = next(iter(re.findall(r"digest ([0-9a-f]{64})", "".join(outputs))), "")
            typed = line.replace("DIGEST", digest).replace(" voice.py", f" {tmp_path}/voice.py")
            words = shlex.split(typed.replace("airlock-data/airlock.yaml", str(home.config)))[1:]
            outputs.append((await asyncio.to_thread(airlock, *words, env=env, check=False)).stdout)
    assert "`airlock mcp pins accept` accepts them" in outputs[1].replace("\n", " ")
    assert "voice/shout" in outputs[2]
    assert outputs[-1].strip() == "HELLO"


def _blocks(*languages: str) -> list[str]:
    text = (Path(__file__).parents[3] / "docs" / "mcp-servers.md").read_text(encoding="utf-8")
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
