"""A family: a root run and all its subagents in this process, with a shared ledger of what they spent.

Limits check a run's own usage plus state.others, which the ledger updates at every step and tool call. A tool call
counts when it starts, an inference when it ends, so steps, tokens and cost exceed a limit by at most one step per
member. A process that resumes a root run starts with the `others` of its state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from agent.agent import Agent
from agent.events import Event, EventSink
from agent.hooks.hook import Hook
from agent.state import AgentState, Spent

Status = Literal["running", "completed", "stopped", "cancelled", "failed", "lost"]

MEMBER_NOTE = "subagents.member"
"""The note with a subagent's member id; a root run has none."""

_NESTED = {"run_started": "subagent_started", "run_finished": "subagent_finished"}
_log = logging.getLogger(__name__)


def _key(state: AgentState) -> tuple[str, str]:
    """Return the key of a run and its subagents; services may use one run id in two threads."""
    return state.thread, state.run_id


@dataclass(eq=False)
class Member:
    """One run of a family.

    `own` is what the run itself spent; `ended` what its finished subagents spent, and for a root run the `others` that
    it started with. `runs` are the background subagents it started, including finished ones.
    """

    family: Family
    id: str
    parent: Member | None = None
    background: bool = False
    own: Spent = field(default_factory=Spent)
    ended: Spent = field(default_factory=Spent)
    children: dict[str, Member] = field(default_factory=dict)
    runs: dict[str, SubagentRun] = field(default_factory=dict)
    task: asyncio.Task[Any] | None = None
    step_started_s: float = 0.0

    def spent(self, *, without: Member | None = None) -> Spent:
        """Return what this member and its descendants have spent, except one member's own."""
        total = self.ended if self is without else self.own + self.ended
        for member in self.children.values():
            total += member.spent(without=without)
        return total

    def cancel_children(self) -> set[asyncio.Task[Any]]:
        tasks = {member.task for member in self.children.values() if member.task is not None}
        for task in tasks:
            task.cancel()
        return tasks


@dataclass(frozen=True)
class Progress:
    """A subagent's status, its answer or last text, and the reason unless it completed."""

    status: Status
    answer: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """What the parent sees of a finished subagent."""
        answer = shortened(self.answer, 32_000)
        if self.status == "completed":
            return answer or "[the subagent ended without an answer]"
        said = f"The subagent did not finish its task: {self.status} ({self.why})."
        return f"{said}\nThe last it said:\n{answer}" if answer else said


def shortened(text: str, limit_chars: int) -> str:
    """Return the text, or its start and how much is left out."""
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}\n[... {len(text) - limit_chars} characters cut]"


@dataclass(eq=False, kw_only=True)
class SubagentRun(Member):
    """A subagent's run in a task of its own. `reported_in` is the last call that reported its end to the parent."""

    name: str
    asked: str
    reported_in: str = ""
    task: asyncio.Task[Any] = field(init=False)

    def start(self, agent: Agent, state: AgentState, events: EventSink) -> Self:
        """Start the task: a cancellation from within does not cancel the parent."""
        self._outer = events
        self._clock = agent.host.clock
        self._started_s = self._clock()
        self._last_said = ""
        self._finished: dict[str, Any] | None = None  # the payload of its last event
        self.task = asyncio.create_task(self._run(agent, state), name=f"subagent {self.id}")
        self.task.add_done_callback(lambda _: self.family.leave(self))
        return self

    async def _run(self, agent: Agent, state: AgentState) -> None:
        try:
            messages = (await agent.run(state, self._nest)).messages
        except Exception:  # an agent raises only cancellation; if not, the parent continues all the same
            _log.exception("subagent %s failed", self.id)
            return
        said = (one.content for one in reversed(messages) if one.role == "assistant" and one.content)
        self._last_said = next(said, "")

    def _nest(self, event: Event) -> None:
        """Pass an event on, with the call that started the subagent: at the top only the root run starts and ends."""
        if event.type == "run_finished":  # those of deeper subagents arrive renamed
            self._finished = event.payload
        # Deeper subagents have set their own call already.
        self._outer(Event(_NESTED.get(event.type, event.type), {"within": self.id, **event.payload}))

    async def finish(self) -> Progress:
        """Wait for the end. If this wait is cancelled, so is the subagent, and it has ended before this raises."""
        try:
            await self.wait(None)
        except asyncio.CancelledError:
            self.task.cancel()
            await self.wait(None)
            raise
        return self.progress

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the end, at most `timeout_s`; the subagent continues after a timeout."""
        await asyncio.wait({self.task}, timeout=timeout_s)

    @property
    def progress(self) -> Progress:
        if not self.task.done():
            spent = self.spent()
            # The time differs in each answer, so that polling does not count as repeating a call.
            elapsed_s = self._clock() - self._started_s
            why = f"for {elapsed_s:.0f} s, {spent.steps} steps, {spent.usage.output_tokens} tokens"
            return Progress("running", why=why)
        if self._finished is None:
            return Progress("cancelled" if self.task.cancelled() else "failed", why="it ended before it began")
        stop = self._finished["stop"]
        why = f"{stop['hook']}, {stop['rule']}: {stop['reason']}"
        return Progress(self._finished["status"], self._finished["answer"] or self._last_said, why)


class Family:
    """All running members of one root run."""

    def __init__(self, before: Spent) -> None:
        self.root = Member(self, "", ended=before)
        self.forget: Callable[[object], None] = lambda _: None
        self.members: dict[str, Member] = {self.root.id: self.root}

    def others(self, member: Member) -> Spent:
        """Return what the rest of the family has spent; a sum, because subtracting floats is inexact."""
        return self.root.spent(without=member)

    def join(self, parent: Member, id_: str, name: str, asked: str, *, background: bool) -> SubagentRun:
        """Return a new member below `parent`, to be started; the id must not be taken."""
        run = SubagentRun(self, id_, parent, background, name=name, asked=asked)
        parent.children[id_] = self.members[id_] = run
        return run

    def leave(self, member: Member) -> None:
        """Remove a member and keep what it spent. Its subagents are cancelled and no longer counted."""
        if member.parent is None or self.members.pop(member.id, None) is None:
            return
        member.cancel_children()
        spent = member.spent()
        for child in list(member.children.values()):
            self.leave(child)
        del member.parent.children[member.id]
        member.parent.ended += spent


class Families:
    """The families of all active runs, by thread and run id; any number of runs may share this object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._families: dict[tuple[str, str], Family] = {}

    def find(self, state: AgentState) -> Member | None:
        """Return the member of a state; None if its family or the member has ended."""
        family = self._families.get(_key(state))
        return family.members.get(str(state.notes.get(MEMBER_NOTE, ""))) if family is not None else None

    def begin(self, state: AgentState) -> None:
        """Create the family of a root run if it does not exist."""
        if MEMBER_NOTE in state.notes or _key(state) in self._families:
            return
        family = self._families[_key(state)] = Family(state.others)
        # Hooks run in the run's task: this also ends the family of a run without execution_end, such as one that was
        # cancelled twice.
        family.forget = lambda _: self._drop(_key(state), family)
        family.root.step_started_s = self.clock()
        family.root.task = asyncio.current_task()
        if family.root.task is not None:
            family.root.task.add_done_callback(family.forget)

    def end(self, state: AgentState) -> None:
        """End the family of a root run; subagents that still run are cancelled and take no further step."""
        if MEMBER_NOTE not in state.notes and _key(state) in self._families:
            self._drop(_key(state), self._families[_key(state)])

    def _drop(self, key: tuple[str, str], family: Family) -> None:
        if self._families.get(key) is family:
            del self._families[key]
            family.root.cancel_children()
            if family.root.task is not None:
                family.root.task.remove_done_callback(family.forget)


@dataclass(eq=False)
class FamilyLedger(Hook):
    """Records what a member spent and updates its `others`, before the limits check them."""

    families: Families
    name = "subagents_ledger"
    mandatory = True
    # Before every limit at before_step, and after every hook that adds usage at the points after the model.
    priority = 900_000

    async def before_step(self, state: AgentState) -> AgentState:
        self.families.begin(state)
        member = self.families.find(state)
        if member is None:
            return state.forbid_continuation(self.name, "family_ended", "the run that this subagent was for is over")
        member.step_started_s = self.families.clock()
        return self._settled(state)

    async def after_step(self, state: AgentState) -> AgentState:
        return self._settled(state)

    before_inference = after_inference = after_step

    async def before_tool_use(self, state: AgentState) -> AgentState:
        if state.steps:  # a run resumed after an approval starts here; a call outside a run has no family
            self.families.begin(state)
        return self._settled(state, begun=(state.current.tool_index or 0) + 1)

    async def execution_end(self, state: AgentState) -> AgentState:
        state = self._settled(state)
        self.families.end(state)
        return state

    def _settled(self, state: AgentState, *, begun: int = 0) -> AgentState:
        """Settle with the family; the state does not count the `begun` tool calls of its step yet."""
        member = self.families.find(state)
        if member is None:
            return state
        member.own = Spent(steps=state.steps, tool_calls=state.tool_calls + begun, usage=state.usage)
        others = member.family.others(member)
        return state if others == state.others else state.with_(others=others)
