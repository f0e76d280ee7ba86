"""The agent library: a loop made of hooks, tools, and models. Each public name is imported on first use.

Start at `hooks/hook.py` and `state.py`. Imports neither sandbox nor gateway, and no transport, engine or database.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.agent import Agent as Agent
    from agent.agent import stream as stream
    from agent.errors import AgentError as AgentError
    from agent.errors import ModelError as ModelError
    from agent.events import Event as Event
    from agent.hooks.hook import Hook as Hook
    from agent.hooks.hook import Matcher as Matcher
    from agent.hooks.hook import tool_glob as tool_glob
    from agent.hooks.hook import tool_name as tool_name
    from agent.loop import Host as Host
    from agent.messages import Message as Message
    from agent.messages import ToolCall as ToolCall
    from agent.messages import ToolResult as ToolResult
    from agent.models.model import Model as Model
    from agent.models.openai_model import OpenAIModel as OpenAIModel
    from agent.models.openai_model import Prices as Prices
    from agent.models.scripted_model import Call as Call
    from agent.models.scripted_model import Fault as Fault
    from agent.models.scripted_model import ScriptedModel as ScriptedModel
    from agent.models.scripted_model import Turn as Turn
    from agent.state import AgentState as AgentState
    from agent.state import ToolExecution as ToolExecution
    from agent.tool_call import Slot as Slot
    from agent.tools.tool import Capability as Capability
    from agent.tools.tool import Tool as Tool
    from agent.tools.tool import ToolContext as ToolContext
    from agent.tools.tool import tool as tool

_MODULES = {
    "agent": ("Agent", "stream"),
    "errors": ("AgentError", "ModelError"),
    "events": ("Event",),
    "hooks.hook": ("Hook", "Matcher", "tool_glob", "tool_name"),
    "loop": ("Host",),
    "messages": ("Message", "ToolCall", "ToolResult"),
    "models.model": ("Model",),
    "models.openai_model": ("OpenAIModel", "Prices"),
    "models.scripted_model": ("Call", "Fault", "ScriptedModel", "Turn"),
    "state": ("AgentState", "ToolExecution"),
    "tool_call": ("Slot",),
    "tools.tool": ("Capability", "Tool", "ToolContext", "tool"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - from the table

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'agent' has no attribute {name!r}")
        found = getattr(import_module(f"agent.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
