"""A subagent's definition and what it runs with: its budget, its parent's tools, and its events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from agent.events import Event, EventSink
from agent.hooks.hook import Hook
from agent.judged_call import JudgedCall
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.models.model import Model
from agent.state import AgentState
from agent.subagents.family import Member
from agent.tools.tool import ToolContext, ToolExecutor
from agent.tools.toolbox import no_such_tool

_NESTED = {"run_started": "subagent_started", "run_finished": "subagent_finished"}


@dataclass(frozen=True)
class Subagent:
    """The definition of one kind of subagent.

    `description` tells the parent's model when to use it. `tools` names the parent's tools that it may call, None for
    all; spawn_subagent includes the tools that manage subagents. `model` None means the capability's. The budget covers
    the subagent and its own subagents, and only narrows what the run has left.
    """

    description: str
    system_prompt: str
    tools: tuple[str, ...] | None = None
    model: Model | None = None
    steps: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


@dataclass(eq=False)
class SubagentBudget(Hook):
    """Stops a subagent, and the subagents below it, when together they have spent the definition's budget."""

    subagent: str
    member: Member
    budget: Subagent
    name = "subagent_budget"
    mandatory = True

    async def before_step(self, state: AgentState) -> AgentState:
        spent, budget = self.member.spent(), self.budget
        for rule, used, limit, unit in (
            ("max_steps", spent.steps, budget.steps, "steps"),
            ("max_output_tokens", spent.usage.output_tokens, budget.output_tokens, "output tokens"),
            ("max_cost_usd", spent.usage.cost_usd, budget.cost_usd, "USD"),
        ):
            if limit is not None and used >= limit:
                who = f"subagent {self.subagent} and those below it"
                reason = f"{who} used {round(used, 6)} {unit}, its budget is {limit}"
                return state.forbid_continuation(self.name, rule, reason)
        return state


class ParentTools:
    """A ToolExecutor over the parent's tools in `names`, without those about the parent's own state.

    `hidden` tools are not offered, because they would only refuse.
    """

    def __init__(self, inner: ToolExecutor, names: Collection[str] | None, hidden: Collection[str]) -> None:
        self._inner = inner
        self._names = {
            spec.name for spec in inner.specs() if not spec.own_state and (names is None or spec.name in names)
        }
        self._shown = self._names.difference(hidden)

    def specs(self) -> Sequence[ToolSpec]:
        return tuple(spec for spec in self._inner.specs() if spec.name in self._shown)

    def prepare(self, call: ToolCall) -> JudgedCall:
        prepared = self._inner.prepare(call)
        if call.name in self._names:
            return prepared
        return replace(prepared, unfit=no_such_tool(call.name, [spec.name for spec in self.specs()]))

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        return call.unfit or await self._inner.execute(call, context)


class NestedEvents:
    """A sink that passes a subagent's events to its parent's, with the id of the call that started the subagent.

    `finished` is the payload of the subagent's last event. At the top, only the root run starts and finishes.
    """

    def __init__(self, outer: EventSink, call_id: str) -> None:
        self.finished: dict[str, JsonValue] | None = None
        self._outer = outer
        self._call_id = call_id

    def __call__(self, event: Event) -> None:
        if event.type == "run_finished":  # those of deeper subagents arrive renamed
            self.finished = event.payload
        # Deeper subagents have set their own call already.
        self._outer(Event(_NESTED.get(event.type, event.type), {"within": self._call_id, **event.payload}))
