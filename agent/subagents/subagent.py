"""A subagent: its definition, what it runs with, and what its parent sees of it in the background."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError

from agent.hooks.hook import Hook
from agent.messages import Message, ToolCall, ToolResult, ToolSpec, Value
from agent.models.model import Model
from agent.state import AgentState
from agent.subagents.family import Families, Member, Status, shortened
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext, ToolExecutor
from agent.tools.toolbox import no_such_tool

BACKGROUND_NOTE = "subagents.background"
"""The note with all background subagents of a run: {id: Noted as JSON}."""

_LOST = "the process in which it ran has ended, and its work with it; spawn it again if you still need the answer"


@dataclass(frozen=True)
class Subagent:
    """The definition of one kind of subagent.

    `description` says when the parent's model should use it. `tools` names the parent's tools that it may call, None
    for all; spawn_subagent includes the tools that manage subagents. `model` None means the capability's. The budget
    covers the subagent and its own subagents, and only narrows what the run has left.
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
        shared = (spec.name for spec in inner.specs() if not spec.own_state)
        self._names = {name for name in shared if names is None or name in names}
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


class Noted(Value):
    """A background subagent, with task and answer shortened; `seen`: the parent's model has read that it ended."""

    name: str
    task: str
    status: Status
    answer: str = ""
    seen: bool = False


def noted(state: AgentState, member: Member | None) -> dict[str, Noted]:
    """Return the background subagents of a run, with the current status of those in this process."""
    note = state.notes.get(BACKGROUND_NOTE)
    entries: dict[str, Noted] = {}
    for id_, value in note.items() if isinstance(note, dict) else ():
        with suppress(ValidationError):  # an invalid entry is left out
            entries[id_] = Noted.model_validate(value)
    runs = member.runs if member is not None else {}
    for id_ in entries.keys() - runs.keys():
        if entries[id_].status == "running":
            entries[id_] = entries[id_].with_(status="lost", answer=_LOST)
    for id_, run in runs.items():
        progress = run.progress
        entries[id_] = Noted(
            name=run.name,
            task=shortened(run.asked, 200),
            status=progress.status,
            answer="" if progress.status == "running" else shortened(progress.text, 2_000),
            seen=id_ in entries and entries[id_].seen,
        )
    return entries


@dataclass(eq=False)
class BackgroundSubagents(Hook):
    """Updates the note, announces finished subagents to the model, and ends all with the run.

    `tools` are the names of the tools that report on subagents; `grace_s` bounds the wait for their end.
    """

    families: Families
    tools: Collection[str]
    grace_s: float
    name = "subagents"
    mandatory = True
    # The last to append messages, and the first at execution_end: other hooks see a run without subagents.
    priority = -900_000

    def __post_init__(self) -> None:
        self.timeout_s = self.grace_s + 5.0

    async def before_inference(self, state: AgentState) -> AgentState:
        state, entries = self._updated(state)
        ended = {id_: entry for id_, entry in entries.items() if entry.status != "running" and not entry.seen}
        if not ended:
            return state
        news = ", ".join(f"{id_} ({entry.name}, {entry.status})" for id_, entry in ended.items())
        text = f"[background subagents have ended: {news}. check_subagent gives the answer]"
        return state.with_messages((*state.current.input_messages, Message(role="user", content=text)))

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.call.name not in self.tools or not tool.succeeded:
            return state
        member = self.families.find(state)
        asked = (tool.call.arguments or {}).get("id")
        run = member.runs.get(asked) if member is not None and isinstance(asked, str) else None
        # A subagent that ended after this call reported it as running is still to be announced.
        seen = isinstance(asked, str) and (run is None or run.reported_in == tool.call.id)
        return self._updated(state, seen=asked if seen else None)[0]

    async def after_step(self, state: AgentState) -> AgentState:
        return self._updated(state)[0]

    async def execution_end(self, state: AgentState) -> AgentState:
        member = self.families.find(state)
        tasks = member.cancel_children() if member is not None else None
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace_s)
        return self._updated(state)[0]

    def _updated(self, state: AgentState, seen: JsonValue = None) -> tuple[AgentState, dict[str, Noted]]:
        member = self.families.find(state)
        if BACKGROUND_NOTE not in state.notes and (member is None or not member.runs):
            return state, {}
        entries = noted(state, member)
        if isinstance(seen, str) and seen in entries:
            entries[seen] = entries[seen].with_(seen=True)
        ended = [id_ for id_, entry in entries.items() if entry.status != "running"]
        for id_ in ended[: max(0, len(entries) - 32)]:  # of more than 32 the oldest finished ones are removed
            del entries[id_]
            if member is not None:
                member.runs.pop(id_, None)
        note: JsonValue = {id_: entry.model_dump() for id_, entry in entries.items()}
        return (state if note == state.notes.get(BACKGROUND_NOTE) else state.with_note(BACKGROUND_NOTE, note)), entries
