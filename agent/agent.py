"""An agent: a model, its tools and its hooks. The loop that runs it is agent.loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, cast

from pydantic import JsonValue

from agent.capabilities.capability import Capability
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.events import EventSink, discard
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.host import Host
from agent.loop import Parts, Run
from agent.models.model import Model
from agent.state import AgentState, Output
from agent.tools.function_tool import Function, as_tool
from agent.tools.tool import Tool
from agent.tools.toolbox import Toolbox


class Agent(Parts, Generic[Output]):
    """A model, its hooks and its tools. It stores nothing of a run, so any number of runs may share it.

    Agent(output=Report) is an Agent[Report], and its final state an AgentState[Report].
    """

    def __init__(  # noqa: PLR0913 - all keyword-only: most agents set two or three of them
        self,
        *,
        model: Model,
        tools: Sequence[Tool | Function] = (),
        capabilities: Sequence[Capability] = (),
        hooks: Sequence[Hook] = (),
        system_prompt: str = "",
        output: type[Output] | Mapping[str, JsonValue] | None = None,
        name: str = "default",
        host: Host | None = None,
    ) -> None:
        """Register the hooks of the capabilities in order, then `hooks`.

        A function among `tools` becomes a tool (agent.tools.function_tool). The default limits and flow join unless
        `capabilities` contains one of that name. `output` is as in structured_output(output). Raises TypeError and
        ValueError for a hook or a tool that could never work.
        """
        host = host or Host()
        if tools and host.executor is not None:
            raise ValueError("the host's executor runs all tool calls: give it the tools, or leave the executor out")
        capabilities = (Capability("tools", tools=[*map(as_tool, tools)]), *capabilities)
        named = {capability.name for capability in capabilities}
        if output is not None:
            if "structured_output" in named:
                raise ValueError("give the output or the capability structured_output, not both")
            # jsonschema is slow to import, and few agents need it.
            from agent.capabilities.structured_output import structured_output  # noqa: PLC0415

            capabilities = (*capabilities, structured_output(cast(Any, output)))
        capabilities = (*capabilities, *(one for one in (flow(), limits()) if one.name not in named))
        registered = [*(hook for capability in capabilities for hook in capability.hooks), *hooks]
        super().__init__(
            model=model,
            hooks=HookEngine(registered, clock=host.clock),
            executor=host.executor or Toolbox(tool for capability in capabilities for tool in capability.tools),
            system_prompt=system_prompt,
            name=name,
            host=host,
        )

    async def run(self, state: AgentState, events: EventSink = discard) -> AgentState[Output]:
        """Run until something stops the run; return the state with `stop` set. The last event is run_finished.

        A run that waits for an approval returns the state with `pending` set instead, after the event run_suspended.
        Such a state, or one that a before_step hook stored, continues in any process.

        Raises ValueError for a state that is not JSON, and otherwise only asyncio.CancelledError. A cancelled run first
        ends its tool calls, runs the execution_end hooks, and emits run_finished with status cancelled.
        """
        return await Run(self, state, events).run()
