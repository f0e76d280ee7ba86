"""Two rewriting hooks: one shortens the time limit of commands, the other removes keys from results.

Agent(model=..., capabilities=[bash(shell)], hooks=[ShortCommands(), RedactKeys()])
"""

import re
from dataclasses import replace

from agent import AgentState, Hook, tool_name

_KEY = re.compile(rb"\b(sk|ghp|AKIA)[-_A-Za-z0-9]{16,}")


class ShortCommands(Hook):
    """Limits every command to `limit_s`. Policy runs after this hook and judges the rewritten arguments."""

    name = "short_commands"

    def __init__(self, limit_s: float = 20.0) -> None:
        self.limit_s = limit_s
        self.matches = tool_name("execute")

    async def before_tool_use(self, state: AgentState) -> AgentState:
        arguments = state.current.tool.call.arguments or {}
        asked = arguments.get("timeout_s")
        if isinstance(asked, int | float) and asked <= self.limit_s:
            return state
        return state.with_arguments({**arguments, "timeout_s": self.limit_s})


class RedactKeys(Hook):
    """Removes keys from results before the model, the thread and the event log see them."""

    name = "redact_keys"
    mandatory = True
    redacts = True

    async def after_tool_use(self, state: AgentState) -> AgentState:
        result = state.current.tool.result
        if result is None or not _KEY.search(result.content):
            return state
        return state.with_result(
            replace(
                result,
                content=_KEY.sub(b"[redacted]", result.content),
                stdout=_KEY.sub(b"[redacted]", result.stdout),
                stderr=_KEY.sub(b"[redacted]", result.stderr),
            )
        )
