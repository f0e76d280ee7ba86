"""Tools: what a model can call, and what a call gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from agent.filesystem import OnOutput
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tool_call import CallContext, JudgedCall

if TYPE_CHECKING:
    from agent.events import EventSink
    from agent.hooks.hook import Hook
    from agent.state import AgentState


@dataclass(frozen=True)
class RunInFlight:
    """The run that a tool call belongs to, as it was when the step's calls had been judged.

    `context` is what is known of every call of the run. A tool that changes the state does it in a hook of its
    capability, at after_tool_use, which runs in call order.
    """

    state: AgentState
    events: EventSink
    hooks: Sequence[Hook]
    executor: ToolExecutor
    context: CallContext = field(default_factory=CallContext)


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call besides the arguments; `run` is None outside a ToolRunner.

    `hooks` is what the hooks of the call share.
    """

    call_id: str
    on_output: OnOutput | None = None
    run: RunInFlight | None = None
    hooks: CallContext = field(default_factory=CallContext)


class ToolArguments(BaseModel):
    """Base class for arguments that refuse unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments are validated by a pydantic model before `run` sees them."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[[Any, ToolContext], Awaitable[ToolResult]]
    writes: bool = False
    writes_anywhere: bool = False
    own_state: bool = False
    read_only: bool = False


class ToolExecutor(Protocol):
    """The one way to a tool. It returns a result for every failure the model can act on and raises for none of them."""

    def specs(self) -> Sequence[ToolSpec]: ...
    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call with its arguments in the one form that policy judges and the tool takes: paths absolute.

        A call to an unknown tool, or with unfit arguments, is `unfit`: it is judged for the record and never runs.
        """
        ...

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run a call that this executor has prepared; it may be run again."""
        ...
