"""A family: a root run and all its subagents, as far as they work in this process, and the ledger they share.

Limits look at state.spent, which is a run's own and state.others. The ledger makes `others` true: each member reports
what it spent, and learns at every step and tool call what its relatives did, so that a limit holds for the sum of all.
A tool call is reported when it begins. Of an inference in flight elsewhere nothing is known yet: steps, tokens and cost
overshoot by a step per member at most. A process that resumes a root run begins with the `others` of its state: what
the subagents of the process before had spent.

Families are live objects and stay out of the state. A family lives from the first step of its root run to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.hooks.hook import Hook
from agent.state import AgentState, Spent

if TYPE_CHECKING:
    from agent.subagents.subagent_run import SubagentRun

MEMBER_NOTE = "subagents.member"
"""The note that says which member of its family a subagent is; a root run has none."""

# Before every limit at before_step, and after everybody who adds to the usage at the points after the model.
_OUTSIDE_LIMITS = 900_000


_RunKey = tuple[str, str]


def _key(state: AgentState) -> _RunKey:
    """Return what a run is known by, and its subagents with it; services may give runs of two threads one id."""
    return state.thread, state.run_id


class Member:
    """One run of a family: what it has spent, and who works below it.

    `own` is what the run itself reported; `over` is what those below spent that are over, of a root run also what
    `others` held when it came. `runs` are the background subagents it started, the ended ones too.
    """

    def __init__(self, family: Family, id_: str, parent: Member | None = None, *, background: bool = False) -> None:
        self.family = family
        self.id = id_
        self.parent = parent
        self.background = background
        self.own = Spent()
        self.over = Spent()
        self.living: dict[str, Member] = {}
        self.runs: dict[str, SubagentRun] = {}
        self.work: asyncio.Task[Any] | None = None
        self.step_started_s = 0.0

    def spent(self, *, without: Member | None = None) -> Spent:
        """Return what this member and all below it have spent, leaving out one member's own."""
        total = self.over if self is without else self.own + self.over
        for member in self.living.values():
            total += member.spent(without=without)
        return total

    def cancel_below(self) -> set[asyncio.Task[Any]]:
        """Cancel whoever works below; return what to wait for."""
        works = {member.work for member in self.living.values() if member.work is not None}
        for work in works:
            work.cancel()
        return works


class Family:
    """All members of one root run that are at work."""

    def __init__(self, before: Spent) -> None:
        self.root = Member(self, "")
        self.root.over = before
        self.forget: Callable[[object], None] = lambda _: None
        self.members = {self.root.id: self.root}

    def others(self, member: Member) -> Spent:
        """Return what everybody but the member itself has spent; added up, as floats do not come back whole."""
        return self.root.spent(without=member)

    def join(self, parent: Member, id_: str, *, background: bool) -> Member:
        """Return a new member below `parent`; the id must not be taken."""
        member = parent.living[id_] = self.members[id_] = Member(self, id_, parent, background=background)
        return member

    def leave(self, member: Member) -> None:
        """Let a member go; what it spent stays. What might still work below it is cancelled and counts no more."""
        if member.parent is None or self.members.pop(member.id, None) is None:
            return
        member.cancel_below()
        spent = member.spent()
        for below in list(member.living.values()):
            self.leave(below)
        del member.parent.living[member.id]
        member.parent.over += spent

    def at_work(self) -> int:
        """Return how many are at work, the root run among them."""
        return len(self.members)

    def background(self) -> int:
        """Return how many work in the background."""
        return sum(member.background for member in self.members.values())


class Families:
    """The families of all runs under way, by thread and run id; any number of runs may share one of these."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._families: dict[_RunKey, Family] = {}

    def find(self, state: AgentState) -> Member | None:
        """Return whom a state belongs to; None when there is no such family or no such member any more."""
        family = self._families.get(_key(state))
        return family.members.get(str(state.notes.get(MEMBER_NOTE, ""))) if family is not None else None

    def begin(self, state: AgentState) -> None:
        """Make the family of a root run, unless it is there."""
        if MEMBER_NOTE in state.notes or _key(state) in self._families:
            return
        family = self._families[_key(state)] = Family(state.others)
        # Hooks run in the task of the run. Where it ends without execution_end, cancelled twice say, this is the end.
        family.forget = lambda _: self._drop(_key(state), family)
        family.root.step_started_s = self.clock()
        family.root.work = asyncio.current_task()
        if family.root.work is not None:
            family.root.work.add_done_callback(family.forget)

    def end(self, state: AgentState) -> None:
        """Forget the family of a root run; who is still at work is cancelled, and takes no other step."""
        if MEMBER_NOTE not in state.notes and _key(state) in self._families:
            self._drop(_key(state), self._families[_key(state)])

    def _drop(self, key: _RunKey, family: Family) -> None:
        if self._families.get(key) is family:
            del self._families[key]
            family.root.cancel_below()
            if family.root.work is not None:
                family.root.work.remove_done_callback(family.forget)


class FamilyLedger(Hook):
    """Reports what a member spent and tells it what the others did; outside the limits, so that they see it."""

    name = "subagents_ledger"
    mandatory = True
    priority = _OUTSIDE_LIMITS

    def __init__(self, families: Families) -> None:
        self._families = families

    async def before_step(self, state: AgentState) -> AgentState:
        self._families.begin(state)
        member = self._families.find(state)
        if member is None:
            return state.forbid_continuation(self.name, "family_ended", "the run that this subagent was for is over")
        member.step_started_s = self._families.clock()
        return self._settled(state)

    async def before_inference(self, state: AgentState) -> AgentState:
        return self._settled(state)

    async def after_inference(self, state: AgentState) -> AgentState:
        return self._settled(state)

    async def before_tool_use(self, state: AgentState) -> AgentState:
        if state.steps:  # a run that goes on after an approval begins here; a call that belongs to no run has no family
            self._families.begin(state)
        return self._settled(state, begun=(state.current.tool_index or 0) + 1)

    async def after_step(self, state: AgentState) -> AgentState:
        return self._settled(state)

    async def execution_end(self, state: AgentState) -> AgentState:
        state = self._settled(state)
        self._families.end(state)
        return state

    def _settled(self, state: AgentState, *, begun: int = 0) -> AgentState:
        """Settle with the family; `begun` tool calls of the step in flight are not in the state yet."""
        member = self._families.find(state)
        if member is None:
            return state
        member.own = Spent(steps=state.steps, tool_calls=state.tool_calls + begun, usage=state.usage)
        others = member.family.others(member)
        return state if others == state.others else state.with_(others=others)
