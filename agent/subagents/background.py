"""Background subagents as their parent sees them: noted in its state, announced when they end, and ended with it.

A subagent that is noted as running but does not run in this process was lost with the previous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from agent.hooks.hook import Hook
from agent.messages import Message, Value
from agent.state import AgentState
from agent.subagents.family import Families, Member
from agent.subagents.subagent import Status, shortened

BACKGROUND_NOTE = "subagents.background"
"""The note with all background subagents of a run: {id: Noted as JSON}."""

# Past this number the oldest finished ones are removed.
_LIMIT = 32
_TASK_LIMIT_CHARS = 200
_ANSWER_LIMIT_CHARS = 2_000
_LOST = "the process in which it ran has ended, and its work with it; spawn it again if you still need the answer"


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
            task=shortened(run.task, _TASK_LIMIT_CHARS),
            status=progress.status,
            answer="" if progress.status == "running" else shortened(progress.text, _ANSWER_LIMIT_CHARS),
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
        if tool.call.name not in self.tools or tool.blocked or tool.result is None or tool.result.is_error:
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
        for id_ in ended[: max(0, len(entries) - _LIMIT)]:
            del entries[id_]
            if member is not None:
                member.runs.pop(id_, None)
        note: JsonValue = {id_: entry.model_dump() for id_, entry in entries.items()}
        return (state if note == state.notes.get(BACKGROUND_NOTE) else state.with_note(BACKGROUND_NOTE, note)), entries
