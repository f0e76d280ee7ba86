"""One subagent at work: an agent's run on behalf of a tool call, with the parent's tools and mandatory hooks.

It starts with its task and nothing else, in fresh messages, metadata and notes, and what it writes there ends with it.
Its run id and thread are the parent's: journal and audit find its tool calls there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agent.agent import Agent
from agent.capabilities.capability import Capability
from agent.capabilities.flow import ErrorPolicy, FinishReason, ToolCallPresence
from agent.host import Host
from agent.messages import Message
from agent.models.model import Model
from agent.state import AgentState
from agent.subagents.family import MEMBER_NOTE, Member
from agent.subagents.subagent import LentTools, NestedEvents, Subagent, SubagentBudget
from agent.tools.tool import RunInFlight

_log = logging.getLogger(__name__)

Status = Literal["running", "completed", "stopped", "cancelled", "failed", "lost"]

# What makes the parent go on or stop does it in a subagent as well: its settings are the operator's.
_FLOW = (ToolCallPresence, FinishReason, ErrorPolicy)
# What the parent is shown of an answer.
_ANSWER_LIMIT_CHARS = 32_000


@dataclass(frozen=True)
class Standing:
    """How a subagent stands: its answer, or the last that it said, and unless it completed, why."""

    status: Status
    answer: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """What the parent is told of one that has ended."""
        answer = shortened(self.answer, _ANSWER_LIMIT_CHARS)
        if self.status == "completed":
            return answer or "[the subagent ended without an answer]"
        said = f"The subagent did not finish its task: {self.status} ({self.why})."
        return f"{said}\nThe last it said:\n{answer}" if answer else said


class SubagentRun:
    """A subagent at work, and what became of it. `told_in` is the last call that told the parent how it ended."""

    def __init__(self, name: str, task: str, member: Member, events: NestedEvents, clock: Callable[[], float]) -> None:
        self.name = name
        self.task = task
        self.member = member
        self.told_in = ""
        self._events = events
        self._clock = clock
        self._started_s = clock()
        self._last_said = ""
        self._work: asyncio.Task[None] | None = None

    def begin(self, agent: Agent, state: AgentState) -> None:
        """Start to work, in a task of its own: what is cancelled from within does not cancel the parent."""
        self._work = asyncio.create_task(self._run(agent, state), name=f"subagent {self.member.id}")
        self._work.add_done_callback(lambda _: self.member.family.leave(self.member))
        self.member.work = self._work

    async def _run(self, agent: Agent, state: AgentState) -> None:
        try:
            self._last_said = _last_said(await agent.run(state, self._events))
        except Exception:  # an agent raises nothing but cancellation; if one does, the parent goes on all the same
            _log.exception("subagent %s failed", self.member.id)

    async def finish(self) -> Standing:
        """Wait for the end. Who is cancelled while waiting has ended the subagent when it comes back."""
        try:
            await self.wait(None)
        except asyncio.CancelledError:
            self.cancel()
            await self.wait(None)
            raise
        return self.standing

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the end for a while; the subagent goes on when that was too short."""
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=timeout_s)

    def cancel(self) -> None:
        """Ask the subagent to end."""
        if self._work is not None:
            self._work.cancel()

    @property
    def standing(self) -> Standing:
        """How the subagent stands now."""
        if self._work is None or not self._work.done():
            spent = self.member.spent()
            # With the time: who looks twice sees that it goes on, and is not taken for a model that repeats itself.
            far = (
                f"for {self._clock() - self._started_s:.0f} s, {spent.steps} steps, {spent.usage.output_tokens} tokens"
            )
            return Standing("running", why=far)
        finished: dict[str, Any] | None = self._events.finished
        if finished is None:
            return Standing("cancelled" if self._work.cancelled() else "failed", why="it ended before it began")
        stop = finished["stop"]
        answer = finished["answer"] or self._last_said
        return Standing(finished["status"], answer, f"{stop['hook']}, {stop['rule']}: {stop['reason']}")


@dataclass(frozen=True)
class Assignment:
    """A task for a subagent: the call that gives it, and the run and the family member that make this call."""

    name: str
    task: str
    background: bool
    call_id: str
    run: RunInFlight
    parent: Member


def start(
    work: Assignment,
    definition: Subagent,
    model: Model,
    tools: LentTools,
    clock: Callable[[], float],
) -> SubagentRun:
    """Start a subagent on its task; `model` is for a definition without one."""
    run, parent = work.run, work.parent
    member = parent.family.join(parent, work.call_id, background=work.background)
    flows = tuple(hook for hook in run.hooks if isinstance(hook, _FLOW))
    inherited = tuple(hook for hook in run.hooks if hook.mandatory or hook.innermost or hook in flows)
    agent = Agent(
        model=definition.model or model,
        capabilities=(
            # First of all, so that the operator's hooks are outside of what comes with the subagent, as in the parent.
            Capability("inherited", hooks=inherited),
            *((Capability("flow"),) if flows else ()),  # in place of the usual one, as its hooks are inherited
            # In place of the usual limits: the run's own are among the inherited hooks.
            Capability("limits", hooks=(SubagentBudget(work.name, member, definition),)),
        ),
        system_prompt=definition.system_prompt,
        name=work.name,
        host=Host(clock=clock, executor=tools),
    )
    state = AgentState(
        run_id=run.state.run_id,
        thread=run.state.thread,
        agent=work.name,
        depth=run.state.depth + 1,
        messages=(Message(role="user", content=work.task),),
        notes={MEMBER_NOTE: member.id},
        others=parent.family.others(member),
        # With the parent's step in flight, so that a limit of time leaves the subagent what is left of the run's.
        active_s=run.state.active_s + clock() - parent.step_started_s,
    )
    started = SubagentRun(work.name, work.task, member, NestedEvents(run.events, work.call_id), clock)
    started.begin(agent, state)
    return started


def _last_said(state: AgentState) -> str:
    said = (message.content for message in reversed(state.messages) if message.role == "assistant" and message.content)
    return next(said, "")


def shortened(text: str, limit_chars: int) -> str:
    """Return the text, or its start and how much is left out."""
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}\n[... {len(text) - limit_chars} characters cut]"
