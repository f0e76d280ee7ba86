"""The examples do what they say, with the real model client against a scripted server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.capabilities.bash import bash
from agent.capabilities.filesystem import filesystem
from agent.hooks.engine import HookEngine
from agent.messages import ToolResult
from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from examples import local_agent
from examples.blocking_hook import KeepSecrets
from examples.rewriting_hook import RedactKeys, ShortCommands
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import Events, FakeShell, allowing, call, state, tool


def test_the_library_example_is_short() -> None:
    assert len(Path(local_agent.__file__).read_text().splitlines()) < 30


async def test_an_agent_works_on_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greeting.txt").write_text("hello")
    turns = (
        Turn(expect=["shout"], calls=[Call("read_file", {"path": "greeting.txt"})]),
        Turn(
            expect=["hello"],
            calls=[Call("edit_file", {"path": "greeting.txt", "old_text": "hello", "new_text": "HELLO"})],
        ),
        Turn(expect=["replaced 1 match"], say="It shouts."),
    )
    async with ScriptedModelServer(turns) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        answer = await local_agent.main(str(tmp_path), "shout")
    assert (answer, server.failures) == ("It shouts.", [])
    assert (tmp_path / "greeting.txt").read_text() == "HELLO"


async def test_the_library_example_says_why_there_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedModelServer([Turn(fault=Fault("status", status=401))]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        answer = await local_agent.main(str(tmp_path), "say hi")
    assert answer.startswith("no answer: ")
    assert "HTTP 401" in answer


@pytest.mark.parametrize("path", ["/workspace/.env", "a/../.env", ".env.production", "/workspace/deep/key.pem"])
async def test_the_blocking_hook_blocks_secrets_and_nothing_else(path: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("open")
    tools = Toolbox(filesystem(LocalFS(tmp_path)).tools)
    runner = ToolRunner(HookEngine([KeepSecrets(), allowing()]), tools, Events())
    done = await runner.run(state(), [call("read_file", path=path), call("read_file", "c2", path="notes.txt")])
    secret, notes = done.current.tool_executions
    assert secret.result is not None
    assert secret.result.outcome == "blocked"
    assert "ask for the value" in secret.result.text()
    assert notes.result == ToolResult(b"open")


@pytest.mark.parametrize("asked, runs", [(600.0, 20.0), (5.0, 5.0), (None, 20.0)])
async def test_the_rewriting_hook_shortens_commands_before_policy_sees_them(asked: float | None, runs: float) -> None:
    policy, tools = allowing(), Toolbox(bash(FakeShell()).tools)
    arguments = {"command": "make"} if asked is None else {"command": "make", "timeout_s": asked}
    await ToolRunner(HookEngine([ShortCommands(), policy]), tools, Events()).run(
        state(),
        [call("execute", **arguments)],  # type: ignore[arg-type]
    )
    assert policy.seen == [{"command": "make", "timeout_s": runs}]


async def test_the_rewriting_hook_takes_keys_out_of_results_and_of_the_live_output() -> None:
    key = b"sk-0123456789abcdefgh"

    async def shows(_arguments: object, context: object) -> ToolResult:
        on_output = getattr(context, "on_output", None)
        if on_output is not None:
            on_output("stdout", key)
        return replace(ToolResult(b"key " + key), stdout=key)

    events = Events()
    runner = ToolRunner(HookEngine([RedactKeys(), allowing()]), Toolbox([tool("show", shows)]), events)
    done = await runner.run(state(), [call("show")])
    assert done.current.tool_executions[0].result == ToolResult(b"key [redacted]", stdout=b"[redacted]")
    assert key.decode() not in str(list(events))
