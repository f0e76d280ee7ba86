"""Background subagents as their parent sees them: noted in its state, announced when they end, ended with it.

The note is all that a process which resumes the run has of them: whoever is noted as running and is not at work here
was lost with the process before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from pydantic import JsonValue, ValidationError

from agent.hooks.hook import Hook
from agent.messages import Message, Value
from agent.state import AgentState
from agent.subagents.family import Families, Member
from agent.subagents.subagent_run import Status, shortened

BACKGROUND_NOTE = "subagents.background"
"""The note of all background subagents of a run: {id: Noted as JSON}."""

# The last to add to the messages, and the first at execution_end: others then see a run that has ended altogether.
_INSIDE_OTHERS = -900_000
# Of more than these the oldest that have ended are forgotten.
_KEPT = 32
_TASK_LIMIT_CHARS = 200
_ANSWER_LIMIT_CHARS = 2_000
_LOST = "the process in which it ran has ended, and its work with it; spawn it again if you still need the answer"


class Noted(Value):
    """A background subagent; task and answer are shortened, `seen` says that the parent was told of its end."""

    name: str
    task: str
    status: Status
    answer: str = ""
    seen: bool = False


def noted(state: AgentState, member: Member | None) -> dict[str, Noted]:
    """Return how each background subagent of a run stands: as noted, and as is true of those of this process."""
    note = state.notes.get(BACKGROUND_NOTE)
    entries: dict[str, Noted] = {}
    for id_, value in note.items() if isinstance(note, dict) else ():
        try:
            entries[id_] = Noted.model_validate(value)
        except ValidationError:
            continue  # not ours
    runs = member.runs if member is not None else {}
    for id_ in entries.keys() - runs.keys():
        if entries[id_].status == "running":
            entries[id_] = entries[id_].model_copy(update={"status": "lost", "answer": _LOST})
    for id_, run in runs.items():
        standing = run.standing
        entries[id_] = Noted(
            name=run.name,
            task=shortened(run.task, _TASK_LIMIT_CHARS),
            status=standing.status,
            answer="" if standing.status == "running" else shortened(standing.text, _ANSWER_LIMIT_CHARS),
            seen=id_ in entries and entries[id_].seen,
        )
    return entries


class BackgroundSubagents(Hook):
    """Keeps the note true, tells the model who has ended, and lets nobody outlive the run."""

    name = "subagents"
    mandatory = True
    priority = _INSIDE_OTHERS

    def __init__(self, families: Families, tools: Collection[str], grace_s: float) -> None:
        """Take the names of the tools that tell of subagents, and how long the run's end waits for theirs."""
        self._families = families
        self._tools = tools
        self._grace_s = grace_s
        self.timeout_s = grace_s + 5.0

    async def before_inference(self, state: AgentState) -> AgentState:
        state, entries = self._kept(state)
        news = [
            f"{id_} ({entry.name}, {entry.status})"
            for id_, entry in entries.items()
            if entry.status != "running" and not entry.seen
        ]
        if not news:
            return state
        text = f"[background subagents have ended: {', '.join(news)}. check_subagent gives the answer]"
        return state.with_messages((*state.current.input_messages, Message(role="user", content=text)))

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.call.name not in self._tools or tool.blocked or tool.result is None or tool.result.is_error:
            return state
        member = self._families.find(state)
        asked = (tool.call.arguments or {}).get("id")
        run = member.runs.get(asked) if member is not None and isinstance(asked, str) else None
        # One that ended after this call said that it is running is news still.
        told = isinstance(asked, str) and (run is None or run.told_in == tool.call.id)
        return self._kept(state, seen=asked if told else None)[0]

    async def after_step(self, state: AgentState) -> AgentState:
        return self._kept(state)[0]

    async def execution_end(self, state: AgentState) -> AgentState:
        member = self._families.find(state)
        works = member.cancel_below() if member is not None else None
        if works:
            await asyncio.wait(works, timeout=self._grace_s)
        return self._kept(state)[0]

    def _kept(self, state: AgentState, seen: JsonValue = None) -> tuple[AgentState, dict[str, Noted]]:
        """Return the state with a true note, and what it says."""
        member = self._families.find(state)
        if BACKGROUND_NOTE not in state.notes and (member is None or not member.runs):
            return state, {}
        entries = noted(state, member)
        if isinstance(seen, str) and seen in entries:
            entries[seen] = entries[seen].model_copy(update={"seen": True})
        ended = [id_ for id_, entry in entries.items() if entry.status != "running"]
        for id_ in ended[: max(0, len(entries) - _KEPT)]:
            del entries[id_]
            if member is not None:
                member.runs.pop(id_, None)
        note: JsonValue = {id_: entry.model_dump() for id_, entry in entries.items()}
        return (state if note == state.notes.get(BACKGROUND_NOTE) else state.with_note(BACKGROUND_NOTE, note)), entries
