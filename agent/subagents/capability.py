"""Subagents: agents with a context of their own that work on a task for another agent, optionally in the background.

A subagent works on the same files, through the parent's tools and all its mandatory hooks, within what the run's limits
leave. Background subagents end with the run that started them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import Field, create_model

from agent.agent import Agent
from agent.capabilities.flow import ErrorPolicy, FinishReason, ToolCallPresence
from agent.loop import Host
from agent.messages import Message, ToolResult
from agent.models.model import Model
from agent.state import AgentState
from agent.subagents.family import MEMBER_NOTE, Families, FamilyLedger, Member, SubagentRun
from agent.subagents.subagent import BackgroundSubagents, Noted, ParentTools, Subagent, SubagentBudget, noted
from agent.tools.tool import Capability, RunInFlight, Tool, ToolArguments, ToolContext

__all__ = ["Subagent", "subagents"]

_SPAWN = "spawn_subagent"
_TOOLS = (_SPAWN, "check_subagent", "wait_subagent", "cancel_subagent", "list_subagents")
# Of one family, including the root run: each member has a model request or a tool call in progress.
_AT_WORK_LIMIT = 16
_BACKGROUND_LIMIT = 8
_TOO_MANY = (
    f"{_AT_WORK_LIMIT} of this run's agents are at work, which is as many as there can be at once; "
    "spawn this one when another has ended, or do the task yourself"
)
_TOO_MANY_IN_BACKGROUND = (
    f"{_BACKGROUND_LIMIT} background subagents are at work, which is as many as there can be; "
    "wait for one with wait_subagent, end one with cancel_subagent, or spawn this one with background=false"
)


class _Spawn(ToolArguments):
    name: str
    task: str = Field(min_length=1, max_length=32_000, description="all it needs to know: it sees nothing else of this")
    background: bool = Field(default=False, description="return an id at once instead of the answer")


class _OfOne(ToolArguments):
    id: str = Field(min_length=1, max_length=256, description="as spawn_subagent gave it")


class _Wait(_OfOne):
    timeout_s: float = Field(
        60.0, ge=0, le=300, description="how long to wait, in seconds; the subagent continues after that"
    )


def subagents(
    definitions: Mapping[str, Subagent],
    model: Model,
    *,
    depth: int = 3,
    grace_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Capability:
    """Return the tools that start and manage subagents, and the hooks that account for them.

    `model` is for definitions without one. Subagents may have subagents of their own, `depth` levels deep. At its end a
    run cancels its background subagents and waits up to `grace_s` for them. Raises ValueError for no definitions, for
    a name that a model cannot be shown, and for a depth below 1.
    """
    if not definitions:
        raise ValueError("subagents: no definitions; give at least one, or leave the capability out")
    for name in definitions:
        if not name.isprintable() or not 0 < len(name) <= 64:
            raise ValueError(f"subagents: the name {name[:64]!r} must have 1 to 64 printable characters")
    if depth < 1:
        raise ValueError(f"subagents: depth is {depth}; 1 lets the agent itself have subagents, but these none")
    families = Families(clock)
    made = _SubagentTools(dict(definitions), model, depth, grace_s, families)
    shown = "; ".join(f"{name}: {definition.description}" for name, definition in definitions.items())
    named = Field(description="which subagent", json_schema_extra={"enum": list(definitions)})
    tools = (
        Tool(
            _SPAWN,
            f"Give a task to a subagent and get its answer. It works on the same files. There are: {shown}",
            create_model("SpawnArguments", __base__=_Spawn, name=(str, named)),
            made.spawn,
        ),
        Tool(
            "check_subagent",
            "Get the status of a background subagent, or its answer if it has ended.",
            _OfOne,
            made.check,
        ),
        Tool("wait_subagent", "Wait for a background subagent and get its answer.", _Wait, made.wait),
        Tool("cancel_subagent", "End a background subagent.", _OfOne, made.cancel),
        Tool("list_subagents", "List your background subagents.", ToolArguments, made.list),
    )
    return Capability(
        "subagents", hooks=(FamilyLedger(families), BackgroundSubagents(families, _TOOLS, grace_s)), tools=tools
    )


@dataclass(frozen=True)
class _SubagentTools:
    """The tools. They store nothing: the families know the running subagents."""

    definitions: Mapping[str, Subagent]
    model: Model
    depth: int
    grace_s: float
    families: Families

    async def spawn(self, asked: _Spawn, context: ToolContext) -> ToolResult:
        run, parent = context.run, self._member(context)
        if run is None or parent is None:
            return ToolResult.error("a subagent works for a run, and this call belongs to none")
        if refusal := self._refusal(asked, context.call_id, run, parent):
            return ToolResult.error(refusal)
        started = self._started(asked, context.call_id, run, parent)
        if asked.background:
            parent.runs[context.call_id] = started
            at_work = f"{context.call_id} ({asked.name}) is at work"
            return _said(f"{at_work}. It ends with you: wait_subagent gives its answer")
        progress = await started.finish()
        return _said(progress.text) if progress.status == "completed" else ToolResult.error(progress.text)

    def _started(self, asked: _Spawn, call_id: str, run: RunInFlight, parent: Member) -> SubagentRun:
        definition, clock = self.definitions[asked.name], self.families.clock
        hidden = _TOOLS if run.state.depth + 1 >= self.depth else ()
        member = parent.family.join(parent, call_id, asked.name, asked.task, background=asked.background)
        # A subagent has its parent's flow, whose settings are the operator's.
        flows = tuple(hook for hook in run.hooks if isinstance(hook, ToolCallPresence | FinishReason | ErrorPolicy))
        inherited = tuple(hook for hook in run.hooks if hook.mandatory or hook.innermost or hook in flows)
        agent = Agent(
            model=definition.model or self.model,
            capabilities=(
                # First, so that the operator's hooks are outside of the subagent's own, as in the parent.
                Capability("inherited", hooks=inherited),
                *((Capability("flow"),) if flows else ()),  # replaces the default one: its hooks are inherited
                # Replaces the default limits: the run's own are among the inherited hooks.
                Capability("limits", hooks=(SubagentBudget(asked.name, member, definition),)),
            ),
            system_prompt=definition.system_prompt,
            name=asked.name,
            host=Host(
                clock=clock, executor=ParentTools(run.executor, _tool_names(definition), hidden), context=run.context
            ),
        )
        state = AgentState(
            run_id=run.state.run_id,
            thread=run.state.thread,
            agent=asked.name,
            depth=run.state.depth + 1,
            messages=(Message(role="user", content=asked.task),),
            notes={MEMBER_NOTE: member.id},
            others=parent.family.others(member),
            # Including the parent's current step, so that a time limit leaves the subagent what the run has left.
            active_s=run.state.active_s + clock() - parent.step_started_s,
        )
        return member.start(agent, state, run.events)

    async def check(self, asked: _OfOne, context: ToolContext) -> ToolResult:
        return await self._report(asked.id, context, None)

    async def wait(self, asked: _Wait, context: ToolContext) -> ToolResult:
        return await self._report(asked.id, context, asked.timeout_s)

    async def cancel(self, asked: _OfOne, context: ToolContext) -> ToolResult:
        member = self._member(context)
        if member is not None and asked.id in member.runs:
            member.runs[asked.id].task.cancel()
        return await self._report(asked.id, context, self.grace_s)

    async def list(self, _asked: ToolArguments, context: ToolContext) -> ToolResult:
        entries = self._entries(context)
        return _said("\n".join(_line(id_, entry) for id_, entry in entries.items()) or "[no background subagents]")

    def _member(self, context: ToolContext) -> Member | None:
        return self.families.find(context.run.state) if context.run is not None else None

    def _entries(self, context: ToolContext) -> dict[str, Noted]:
        return noted(context.run.state, self._member(context)) if context.run is not None else {}

    def _refusal(self, asked: _Spawn, call_id: str, run: RunInFlight, parent: Member) -> str:
        """Return why this subagent cannot start, empty if it can."""
        family, depth = parent.family, run.state.depth
        if asked.name not in self.definitions:
            return f"there is no subagent {asked.name[:64]!r}; there are {', '.join(self.definitions)}"
        if depth >= self.depth:
            return f"subagents can be {self.depth} deep and you are at depth {depth}: do the task yourself"
        if call_id in family.members or call_id in parent.runs:
            return f"this call has started a subagent already, {call_id}"
        if len(family.members) >= _AT_WORK_LIMIT:
            return _TOO_MANY
        in_background = sum(member.background for member in family.members.values())
        return _TOO_MANY_IN_BACKGROUND if asked.background and in_background >= _BACKGROUND_LIMIT else ""

    async def _report(self, id_: str, context: ToolContext, timeout_s: float | None) -> ToolResult:
        member = self._member(context)
        run = member.runs.get(id_) if member is not None else None
        if run is not None and timeout_s is not None:
            await run.wait(timeout_s)
        entries = self._entries(context)
        if id_ not in entries:
            known = ", ".join(entries) or f"none; {_SPAWN} with background=true starts one"
            return ToolResult.error(f"unknown background subagent {id_[:64]!r}; known: {known}")
        entry = entries[id_]
        if run is None:
            said = f"\n{entry.answer}"
        elif entry.status == "running":
            said = f" {run.progress.why}"
        else:
            run.reported_in = context.call_id
            said = f"\n{run.progress.text}"
        return _said(f"{id_} ({entry.name}): {entry.status}{said}")


def _tool_names(definition: Subagent) -> frozenset[str] | None:
    """Return the tools of a definition, None for all; spawn_subagent includes the others about subagents."""
    if definition.tools is None:
        return None
    return frozenset((*definition.tools, *_TOOLS) if _SPAWN in definition.tools else definition.tools)


def _line(id_: str, entry: Noted) -> str:
    return f"{id_} ({entry.name}): {entry.status}: {' '.join(entry.task.split())[:100]}"


def _said(text: str) -> ToolResult:
    return ToolResult(text.encode("utf-8", "replace"))
