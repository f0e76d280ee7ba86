"""What a subagent is, and what it is given: its budget, tools of its parent's, and a way for its events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from agent.events import Event, EventSink
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.models.model import Model
from agent.state import AgentState
from agent.subagents.family import Member
from agent.tools.tool import ToolContext, ToolExecutor
from agent.tools.toolbox import no_such_tool

_NESTED = {"run_started": "subagent_started", "run_finished": "subagent_finished"}


@dataclass(frozen=True)
class Subagent:
    """What a subagent of one kind is.

    `description` tells the parent's model what it is good for. `tools` are the parent's tools that it may call, all of
    them when None; spawn_subagent among them brings the tools that look after subagents. `model` None means the
    capability's. The budget is for the subagent and all below it together, and only narrows what the run has left.
    """

    description: str
    system_prompt: str
    tools: tuple[str, ...] | None = None
    model: Model | None = None
    steps: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class SubagentBudget(Hook):
    """Stops a subagent, and whoever works below it, when they together have spent what its definition grants."""

    name = "subagent_budget"
    mandatory = True

    def __init__(self, subagent: str, member: Member, granted: Subagent) -> None:
        self._subagent = subagent
        self._member = member
        self._granted = granted

    async def before_step(self, state: AgentState) -> AgentState:
        spent, granted = self._member.spent(), self._granted
        for rule, used, limit, unit in (
            ("max_steps", spent.steps, granted.steps, "steps"),
            ("max_output_tokens", spent.usage.output_tokens, granted.output_tokens, "output tokens"),
            ("max_cost_usd", spent.usage.cost_usd, granted.cost_usd, "USD"),
        ):
            if limit is not None and used >= limit:
                who = f"subagent {self._subagent} and those below it"
                reason = f"{who} used {round(used, 6)} {unit}, its budget is {limit}"
                return state.forbid_continuation(self.name, rule, reason)
        return state


class LentTools:
    """A ToolExecutor over some of another's tools, without those that are about the other run's own state.

    `unseen` ones are not shown, as all they would say is no.
    """

    def __init__(self, inner: ToolExecutor, names: Collection[str] | None, unseen: Collection[str]) -> None:
        self._inner = inner
        own_state = {spec.name for spec in inner.specs() if spec.own_state}
        known = {spec.name for spec in inner.specs()} if names is None else names
        self._names = frozenset(known) - own_state
        self._unseen = unseen

    def specs(self) -> Sequence[ToolSpec]:
        return tuple(spec for spec in self._inner.specs() if self._lends(spec.name) and spec.name not in self._unseen)

    def check(self, call: ToolCall) -> ToolResult | None:
        if self._lends(call.name):
            return self._inner.check(call)
        return no_such_tool(call.name, [spec.name for spec in self.specs()])

    def normalised(self, call: ToolCall) -> ToolCall:
        return self._inner.normalised(call)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return self.check(call) or await self._inner.execute(call, context)

    def _lends(self, name: str) -> bool:
        return name in self._names


class NestedEvents:
    """A sink that hands a subagent's events to its parent's, each with the id of the call that the subagent is for.

    `finished` is what the subagent's last event says. To the sink at the top only the root run starts and finishes.
    """

    def __init__(self, outer: EventSink, call_id: str) -> None:
        self.finished: dict[str, JsonValue] | None = None
        self._outer = outer
        self._call_id = call_id

    def __call__(self, event: Event) -> None:
        if event.type == "run_finished":  # that of one further down comes here renamed
            self.finished = event.payload
        # Whoever is deeper has named its call already.
        self._outer(Event(_NESTED.get(event.type, event.type), {"within": self._call_id, **event.payload}))
