"""The tutorial's commands that set up a gateway and run an agent, with a real model server behind the gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.docker_state import containers_of
from tests.models.servers import MODEL, ModelServer
from tests.tutorial_reader import Reader, blocks, serving

# So small a model does not always find the end of an answer.
_AGENT = """\
  {name}:
    model: {{temperature: 0, seed: 1, max_output_tokens: 100, tool_choice: {choice}}}
    capabilities: {{filesystem: , bash: , flow: {{on_cut_answer: accept}}}}
"""
_STEPS = 2


def _typed(beginning: str) -> str:
    """Return the commands of the block that begins so."""
    return next(block.typed for block in blocks() if block.typed.startswith(beginning))


@asynccontextmanager
async def _gateway(server: ModelServer, directory: Path, **choices: str) -> AsyncIterator[Callable[[str], str]]:
    """Follow the page up to its first call; yield what types a command. `choices` are tool_choices by agent."""
    reader = Reader.in_directory(directory)
    reader.type(_typed("airlock init"))
    data = directory / "airlock-data"
    with (data / "airlock.yaml").open("a", encoding="utf-8") as config:
        config.write("\nagents:\n" + "".join(_AGENT.format(name=name, choice=choices[name]) for name in choices))
    policy = data / "policies" / "default.yaml"
    policy.write_text(re.sub(r"steps: \d+", f"steps: {_STEPS}", policy.read_text(encoding="utf-8")), encoding="utf-8")
    model = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "AIRLOCK_MODEL": MODEL}
    async with serving(reader, _typed("airlock serve"), model):
        reader.env["AIRLOCK_API_KEY"] = reader.noted["SERVICE_KEY"]
        await asyncio.to_thread(reader.type, _typed("printf 'region,amount"))
        yield reader.type
    assert containers_of((data / "state" / "instance").read_text(encoding="ascii")) == []


def _events(printed: str, type_: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [event for event in events if event["type"] == type_]


async def test_the_tutorials_agent_calls_a_tool_and_answers_with_llama_server(
    llama_server: ModelServer, tmp_path: Path
) -> None:
    task, listed, *_ = _typed("airlock run ").splitlines()
    async with _gateway(llama_server, tmp_path, default="null") as type_:
        printed = await asyncio.to_thread(type_, f"{task} --json")
        assert "completed" in await asyncio.to_thread(type_, listed), printed
    assert [call["is_error"] for call in _events(printed, "tool_call_finished")] == [False]
    called, answered = _events(printed, "model_finished")
    assert called["tool_calls"]
    assert "".join(piece["text"] for piece in _events(printed, "model_delta")) == called["text"] + answered["text"]
    assert answered["text"]
    assert [run["status"] for run in _events(printed, "run_finished")] == ["completed"]


async def test_the_tutorials_agent_calls_tools_or_answers_with_llama_cpp_python(
    llama_cpp_python: ModelServer, tmp_path: Path
) -> None:
    """It streams a call only of a tool that the request names, and then each answer is such a call."""
    task, listed, *_ = _typed("airlock run ").splitlines()
    async with _gateway(llama_cpp_python, tmp_path, default="none", caller="write_file") as type_:
        printed = await asyncio.to_thread(type_, f"{task} --agent caller --json || true")
        calls = _events(printed, "tool_call_finished")
        assert [call["name"] for call in calls] == ["write_file"] * _STEPS, printed
        assert [run["status"] for run in _events(printed, "run_finished")] == ["stopped"]

        printed = await asyncio.to_thread(type_, f"{task} --json")
        (answered,) = _events(printed, "model_finished")
        assert "".join(piece["text"] for piece in _events(printed, "model_delta")) == answered["text"]
        assert answered["text"]
        assert "completed" in await asyncio.to_thread(type_, listed)
