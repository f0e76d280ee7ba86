"""The Python in docs/agent.md runs, and its YAML is a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from agent.hooks.engine import HookEngine
from agent.tools.tool import ToolContext
from agent.tools.toolbox import Toolbox
from gateway.config.agent_settings import AgentSettings
from gateway.config.model_settings import ModelSettings
from tests.unit.agent.fakes import call

_PAGE = (Path(__file__).parents[3] / "docs" / "agent.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE)


def defined(block: str) -> dict[str, Any]:
    # A module's name, for pydantic to find the types that the annotations name.
    names: dict[str, Any] = {"__name__": __name__}
    exec(block, names)
    return names


async def test_the_hook_and_the_capability_of_the_page_work() -> None:
    hook, capability = (defined(block) for block in blocks("python"))
    HookEngine([hook["KeepSecrets"]()])
    tools = Toolbox(capability["counting"]().tools)
    assert (await tools.execute(call("word_count", text="one two"), ToolContext("c1"))).content == b"2"


def test_the_settings_of_the_page_load() -> None:
    agents, model = (yaml.safe_load(block) for block in blocks("yaml"))
    mender = AgentSettings.model_validate(agents["tenants"]["acme"]["agents"]["mender"])
    assert mender.capabilities.subagents is not None
    assert ModelSettings.model_validate(model["model"]).priced
