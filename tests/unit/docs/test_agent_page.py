"""The Python in docs/agent.md runs, and its YAML is a configuration."""

from __future__ import annotations

import asyncio
import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import yaml

import agent
from agent import Agent, Call, ScriptedModel, Turn, capabilities
from agent.capabilities.flow import ErrorSettings
from agent.hooks.engine import HookEngine
from agent.subagents import capability as subagents
from agent.tools.tool import Capability, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.config.agent_settings import AgentSettings
from tests.unit.agent.fakes import call

_PAGE = (Path(__file__).parents[3] / "docs" / "agent.md").read_text()
# The errors, the protocols and base classes, what the library makes itself, and `Agent` and `Host`, tested above.
_DESCRIBED_ELSEWHERE = {
    *("Agent", "AgentError", "AgentState", "Event", "Hook", "Host", "Matcher", "Message", "Model", "ModelError"),
    *("Slot", "ToolCall", "ToolContext", "ToolExecution", "ToolResult", "stream", "tool_glob", "tool_name"),
}
_MODULES = [import_module(f"agent.capabilities.{found.name}") for found in iter_modules(capabilities.__path__)]
_CAPABILITIES = {
    name: function
    for module in [*_MODULES, subagents]
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and inspect.signature(function, eval_str=True).return_annotation is Capability
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE)


def defined(block: str) -> dict[str, Any]:
    # A module's name, for pydantic to find the types that the annotations name.
    names: dict[str, Any] = {"__name__": __name__}
    exec(block, names)
    return names


async def test_the_page_begins_with_one_tool_run_and_printed_in_seven_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = blocks("python")[0]
    assert len([line for line in example.splitlines() if line]) == 7
    turns = [Turn(calls=[Call("weather", {"city": "Bern"})]), Turn(expect=["It rains in Bern."], say="Yes.")]
    model = ScriptedModel(turns, name="gpt-5-mini")
    monkeypatch.setattr(agent, "OpenAIModel", {model.name: model}.__getitem__)
    await asyncio.to_thread(defined, example)  # it runs an event loop of its own
    assert (capsys.readouterr().out, model.failures) == ("Yes.\n", [])


async def test_the_test_of_the_page_passes() -> None:
    await defined(blocks("python")[1])["test_the_agent_adds"]()


def test_the_page_lists_each_parameter_of_an_agent_with_its_default() -> None:
    rows = re.search(r"^\| parameter of `Agent`.*\n\|[-|]+\n((?:\|.*\n)+)", _PAGE, re.MULTILINE)
    assert rows is not None
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", rows[1], re.MULTILINE))
    shown = {inspect.Parameter.empty: "required", (): "none", None: "none", "": "empty", "default": "`default`"}
    parameters = inspect.signature(Agent).parameters.values()
    assert listed == {**{one.name: shown[one.default] for one in parameters}, "host": "`Host()`"}
    assert list(listed) == [one.name for one in parameters]


async def test_the_hook_and_the_capability_of_the_page_work() -> None:
    hook, capability = (defined(block) for block in blocks("python")[2:])
    HookEngine([hook["KeepSecrets"]()])
    tools = Toolbox(capability["counting"]().tools)
    judged = tools.prepare(call("word_count", text="one two"))
    assert (await tools.execute(judged, ToolContext("c1"))).content == b"2"


def test_the_settings_of_the_page_load() -> None:
    (agents,) = (yaml.safe_load(block) for block in blocks("yaml"))
    fixer = AgentSettings.model_validate(agents["tenants"]["acme"]["agents"]["fixer"])
    assert fixer.capabilities.subagents is not None


@pytest.mark.parametrize("name", sorted({*agent.__all__} - _DESCRIBED_ELSEWHERE))
def test_the_page_lists_each_parameter_of_a_public_constructor_in_order(name: str) -> None:
    row = re.search(rf"^\| `{name}\(([\w, ]*)\)` \|", _PAGE, re.MULTILINE)
    assert row is not None
    assert row[1].split(", ") == list(inspect.signature(getattr(agent, name)).parameters)


@pytest.mark.parametrize("name", sorted(_CAPABILITIES))
def test_the_section_of_a_capability_names_each_of_its_parameters(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)^##", _PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    code = " ".join(re.findall(r"`[^`\n]+`", section[1]))
    signature = inspect.signature(_CAPABILITIES[name])
    parameters = {one.name for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD}
    parameters |= ErrorSettings.__annotations__.keys() if name == "flow" else set()
    assert {one for one in parameters if not re.search(rf"\b{one}\b", code)} == set()
