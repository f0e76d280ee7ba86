"""A family: a root run and all its subagents in this process, with a shared ledger of what they spent.

Limits check a run's own usage plus state.others, which the ledger updates at every step and tool call. A tool call
counts when it starts, an inference when it ends, so steps, tokens and cost exceed a limit by at most one step per
member. A process that resumes a root run starts with the `others` of its state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.hooks.hook import Hook
from agent.state import AgentState, Spent

if TYPE_CHECKING:
    from agent.subagents.subagent import SubagentRun

MEMBER_NOTE = "subagents.member"
"""The note with a subagent's member id; a root run has none."""

_RunKey = tuple[str, str]


def _key(state: AgentState) -> _RunKey:
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


class Family:
    """All running members of one root run."""

    def __init__(self, before: Spent) -> None:
        self.root = Member(self, "", ended=before)
        self.forget: Callable[[object], None] = lambda _: None
        self.members = {self.root.id: self.root}

    def others(self, member: Member) -> Spent:
        """Return what the rest of the family has spent; a sum, because subtracting floats is inexact."""
        return self.root.spent(without=member)

    def join(self, parent: Member, id_: str, *, background: bool) -> Member:
        """Return a new member below `parent`; the id must not be taken."""
        member = parent.children[id_] = self.members[id_] = Member(self, id_, parent, background)
        return member

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
        self._families: dict[_RunKey, Family] = {}

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

    def _drop(self, key: _RunKey, family: Family) -> None:
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
