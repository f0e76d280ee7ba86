"""The agent library: a loop made of hooks, tools, and models. Each public name is imported on first use.

Start at `hooks/hook.py` and `state.py`. Imports neither sandbox nor gateway, and no gRPC, container engine or database.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.agent import Agent, stream
    from agent.errors import AgentError, ModelError
    from agent.events import Event
    from agent.hooks.hook import Hook, Matcher, tool_glob, tool_name
    from agent.loop import Host
    from agent.messages import Message, ToolCall, ToolResult
    from agent.models.fallback_model import FallbackModel
    from agent.models.model import Model
    from agent.models.openai_model import OpenAIModel
    from agent.models.prices import Prices
    from agent.models.scripted_model import Call, Fault, ScriptedModel, Turn
    from agent.models.settings import Connection, RequestSettings
    from agent.state import AgentState, ToolExecution
    from agent.tool_call import Slot
    from agent.tools.tool import Capability, Tool, ToolContext, tool

# Literal, for type checkers; a test compares it with the table.
__all__ = ["Agent", "AgentError", "AgentState", "Call", "Capability", "Connection", "Event", "FallbackModel", "Fault"]
__all__ += ["Hook", "Host", "Matcher", "Message", "Model", "ModelError", "OpenAIModel", "Prices", "RequestSettings"]
__all__ += ["ScriptedModel", "Slot", "Tool", "ToolCall", "ToolContext", "ToolExecution", "ToolResult", "Turn"]
__all__ += ["stream", "tool", "tool_glob", "tool_name"]

_MODULES = {
    "agent": ("Agent", "stream"),
    "errors": ("AgentError", "ModelError"),
    "events": ("Event",),
    "hooks.hook": ("Hook", "Matcher", "tool_glob", "tool_name"),
    "loop": ("Host",),
    "messages": ("Message", "ToolCall", "ToolResult"),
    "models.fallback_model": ("FallbackModel",),
    "models.model": ("Model",),
    "models.openai_model": ("OpenAIModel",),
    "models.prices": ("Prices",),
    "models.scripted_model": ("Call", "Fault", "ScriptedModel", "Turn"),
    "models.settings": ("Connection", "RequestSettings"),
    "state": ("AgentState", "ToolExecution"),
    "tool_call": ("Slot",),
    "tools.tool": ("Capability", "Tool", "ToolContext", "tool"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'agent' has no attribute {name!r}")
        found = getattr(import_module(f"agent.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
