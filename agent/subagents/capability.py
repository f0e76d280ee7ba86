"""Subagents: a task handed to another agent with a context of its own, waited for or in the background.

The subagent works on the same files, through the parent's tools and all its mandatory hooks, and within what is left of
the run's limits (agent.subagents). Background subagents end with the run that started them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, create_model

from agent.capabilities.capability import Capability
from agent.messages import ToolResult
from agent.models.model import Model
from agent.subagents.background import BackgroundSubagents, Noted, noted
from agent.subagents.family import Families, FamilyLedger, Member
from agent.subagents.subagent import LentTools, Subagent
from agent.subagents.subagent_run import Assignment, start
from agent.tools.tool import RunInFlight, Tool, ToolContext

__all__ = ["Subagent", "subagents"]

_SPAWN = "spawn_subagent"
_TOOLS = (_SPAWN, "check_subagent", "wait_subagent", "cancel_subagent", "list_subagents")
# Of one family, root run, foreground and background: each has a request to the model or a tool call under way.
_AT_WORK_LIMIT = 16
_BACKGROUND_LIMIT = 8
_TASK_LIMIT_CHARS = 32_000
_SHOWN_LIMIT_CHARS = 100

_Id = Annotated[str, Field(min_length=1, max_length=256, description="as spawn_subagent gave it")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Spawn(_Arguments):
    name: str
    task: str = Field(
        min_length=1, max_length=_TASK_LIMIT_CHARS, description="all it needs to know: it sees nothing else of this"
    )
    background: bool = Field(default=False, description="return an id at once instead of the answer")


class _OfOne(_Arguments):
    id: _Id


class _Wait(_OfOne):
    timeout_s: float = Field(60.0, ge=0, le=300, description="seconds; it goes on when that is too short")


def subagents(
    definitions: Mapping[str, Subagent],
    model: Model,
    *,
    depth: int = 3,
    grace_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Capability:
    """Return the tools that start and look after subagents, and the hooks that keep their books.

    `model` is for definitions without one. Subagents may have subagents of their own, `depth` deep. `grace_s` is how
    long the end of a run waits for its background subagents, which it has cancelled. Raises ValueError for no
    definitions, a name that cannot be shown to a model, and a depth below 1.
    """
    if not definitions:
        raise ValueError("subagents: no definitions; give at least one, or leave the capability out")
    for name in definitions:
        if not name.isprintable() or not 0 < len(name) <= 64:
            raise ValueError(f"subagents: the name {name[:64]!r} must have 1 to 64 printable characters")
    if depth < 1:
        raise ValueError(f"subagents: depth is {depth}; 1 lets the agent itself have subagents, but these none")
    families = Families(clock)
    desk = _Desk(dict(definitions), model, depth, grace_s, families)
    shown = "; ".join(f"{name}: {definition.description}" for name, definition in definitions.items())
    named = Field(description="which subagent", json_schema_extra={"enum": list(definitions)})
    tools = (
        Tool(
            _SPAWN,
            f"Give a task to a subagent and get its answer. It works on the same files. There are: {shown}",
            create_model("SpawnArguments", __base__=_Spawn, name=(str, named)),
            desk.spawn,
        ),
        Tool("check_subagent", "Tell how a background subagent stands; its answer if it ended.", _OfOne, desk.check),
        Tool("wait_subagent", "Wait for a background subagent and get its answer.", _Wait, desk.wait),
        Tool("cancel_subagent", "End a background subagent.", _OfOne, desk.cancel),
        Tool("list_subagents", "List your background subagents.", _Arguments, desk.list),
    )
    return Capability(
        "subagents", hooks=(FamilyLedger(families), BackgroundSubagents(families, _TOOLS, grace_s)), tools=tools
    )


class _Desk:
    """Where the tools are answered. It keeps nothing: who is at work is known to the families."""

    def __init__(
        self, definitions: Mapping[str, Subagent], model: Model, depth: int, grace_s: float, families: Families
    ) -> None:
        self._definitions = definitions
        self._model = model
        self._depth = depth
        self._grace_s = grace_s
        self._families = families

    async def spawn(self, asked: _Spawn, context: ToolContext) -> ToolResult:
        """Start a subagent; wait for it unless it is for the background."""
        run, parent = context.run, self._member(context)
        if run is None or parent is None:
            return ToolResult.error("a subagent works for a run, and this call belongs to none")
        definition = self._definitions.get(asked.name)
        refusal = self._refusal(asked, context.call_id, run, parent)
        if refusal or definition is None:
            return ToolResult.error(refusal)
        unseen = _TOOLS if run.state.depth + 1 >= self._depth else ()
        started = start(
            Assignment(asked.name, asked.task, asked.background, context.call_id, run, parent),
            definition,
            self._model,
            LentTools(run.executor, _lent(definition), unseen),
            self._families.clock,
        )
        if asked.background:
            parent.runs[context.call_id] = started
            return _said(
                f"{context.call_id} ({asked.name}) is at work. It ends with you: wait_subagent gives its answer"
            )
        standing = await started.finish()
        return _said(standing.text) if standing.status == "completed" else ToolResult.error(standing.text)

    async def check(self, asked: _OfOne, context: ToolContext) -> ToolResult:
        """Tell how a subagent stands."""
        return await self._told(asked.id, context, None)

    async def wait(self, asked: _Wait, context: ToolContext) -> ToolResult:
        """Wait a while, then tell how a subagent stands."""
        return await self._told(asked.id, context, asked.timeout_s)

    async def cancel(self, asked: _OfOne, context: ToolContext) -> ToolResult:
        """End a subagent, then tell how it stands."""
        member = self._member(context)
        if member is not None and asked.id in member.runs:
            member.runs[asked.id].cancel()
        return await self._told(asked.id, context, self._grace_s)

    async def list(self, asked: _Arguments, context: ToolContext) -> ToolResult:  # noqa: ARG002 - it takes none
        """List the background subagents, one a line."""
        entries = self._entries(context)
        return _said("\n".join(_line(id_, entry) for id_, entry in entries.items()) or "[no background subagents]")

    def _member(self, context: ToolContext) -> Member | None:
        return self._families.find(context.run.state) if context.run is not None else None

    def _entries(self, context: ToolContext) -> dict[str, Noted]:
        return noted(context.run.state, self._member(context)) if context.run is not None else {}

    def _refusal(self, asked: _Spawn, call_id: str, run: RunInFlight, parent: Member) -> str:
        """Return why this subagent cannot be started, nothing when it can."""
        family, depth = parent.family, run.state.depth
        if asked.name not in self._definitions:
            return f"there is no subagent {asked.name[:64]!r}; there are {', '.join(self._definitions)}"
        if depth >= self._depth:
            return f"subagents can be {self._depth} deep and you are at depth {depth}: do the task yourself"
        if call_id in family.members or call_id in parent.runs:
            return f"this call has started a subagent already, {call_id}"
        if family.at_work() >= _AT_WORK_LIMIT:
            return (
                f"{_AT_WORK_LIMIT} of this run's agents are at work, which is as many as there can be at once; "
                "spawn this one when another has ended, or do the task yourself"
            )
        if asked.background and family.background() >= _BACKGROUND_LIMIT:
            return (
                f"{_BACKGROUND_LIMIT} background subagents are at work, which is as many as there can be; "
                "wait for one with wait_subagent, end one with cancel_subagent, or spawn this one with background=false"
            )
        return ""

    async def _told(self, id_: str, context: ToolContext, timeout_s: float | None) -> ToolResult:
        member = self._member(context)
        run = member.runs.get(id_) if member is not None else None
        if run is None:
            return self._told_by_note(id_, context)
        if timeout_s is not None:
            await run.wait(timeout_s)
        standing = run.standing
        if standing.status == "running":
            return _said(f"{id_} ({run.name}): running {standing.why}")
        run.told_in = context.call_id
        return _said(f"{id_} ({run.name}): {standing.status}\n{standing.text}")

    def _told_by_note(self, id_: str, context: ToolContext) -> ToolResult:
        entries = self._entries(context)
        if id_ in entries:
            return _said(f"{id_} ({entries[id_].name}): {entries[id_].status}\n{entries[id_].answer}")
        known = ", ".join(entries) or f"none; {_SPAWN} with background=true starts one"
        return ToolResult.error(f"there is no background subagent {id_[:64]!r}; there are: {known}")


def _lent(definition: Subagent) -> frozenset[str] | None:
    """Return the tools that a definition names, None for all; who may spawn may look after what was spawned."""
    if definition.tools is None:
        return None
    return frozenset((*definition.tools, *_TOOLS) if _SPAWN in definition.tools else definition.tools)


def _line(id_: str, entry: Noted) -> str:
    return f"{id_} ({entry.name}): {entry.status}: {' '.join(entry.task.split())[:_SHOWN_LIMIT_CHARS]}"


def _said(text: str) -> ToolResult:
    return ToolResult(text.encode("utf-8", "replace"))
