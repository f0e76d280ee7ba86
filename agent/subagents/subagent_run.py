"""A running subagent: an agent's run for a tool call, with the parent's tools and mandatory hooks.

It starts with its task alone: messages, metadata and notes are new and end with it. Run id and thread are the parent's,
so that journal and audit find its tool calls there.
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
from agent.subagents.subagent import NestedEvents, ParentTools, Subagent, SubagentBudget
from agent.tools.tool import RunInFlight

_log = logging.getLogger(__name__)

Status = Literal["running", "completed", "stopped", "cancelled", "failed", "lost"]

# A subagent has its parent's flow, whose settings are the operator's.
_FLOW = (ToolCallPresence, FinishReason, ErrorPolicy)
# How much of an answer the parent sees.
_ANSWER_LIMIT_CHARS = 32_000


@dataclass(frozen=True)
class Progress:
    """A subagent's status, its answer or last text, and the reason unless it completed."""

    status: Status
    answer: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """What the parent sees of a finished subagent."""
        answer = shortened(self.answer, _ANSWER_LIMIT_CHARS)
        if self.status == "completed":
            return answer or "[the subagent ended without an answer]"
        said = f"The subagent did not finish its task: {self.status} ({self.why})."
        return f"{said}\nThe last it said:\n{answer}" if answer else said


class SubagentRun:
    """A subagent's run in a task of its own. `reported_in` is the last call that reported its end to the parent."""

    def __init__(self, name: str, task: str, member: Member, events: NestedEvents, clock: Callable[[], float]) -> None:
        self.name = name
        self.task = task
        self.member = member
        self.reported_in = ""
        self._events = events
        self._clock = clock
        self._started_s = clock()
        self._last_said = ""

    def begin(self, agent: Agent, state: AgentState) -> None:
        """Start the task: a cancellation from within does not cancel the parent."""
        self.member.task = asyncio.create_task(self._run(agent, state), name=f"subagent {self.member.id}")
        self.member.task.add_done_callback(lambda _: self.member.family.leave(self.member))

    async def _run(self, agent: Agent, state: AgentState) -> None:
        try:
            messages = (await agent.run(state, self._events)).messages
        except Exception:  # an agent raises only cancellation; if not, the parent continues all the same
            _log.exception("subagent %s failed", self.member.id)
            return
        said = (one.content for one in reversed(messages) if one.role == "assistant" and one.content)
        self._last_said = next(said, "")

    async def finish(self) -> Progress:
        """Wait for the end. If this wait is cancelled, so is the subagent, and it has ended before this raises."""
        try:
            await self.wait(None)
        except asyncio.CancelledError:
            self.cancel()
            await self.wait(None)
            raise
        return self.progress

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the end, at most `timeout_s`; the subagent continues after a timeout."""
        if self.member.task is not None:
            await asyncio.wait({self.member.task}, timeout=timeout_s)

    def cancel(self) -> None:
        """Cancel the subagent."""
        if self.member.task is not None:
            self.member.task.cancel()

    @property
    def progress(self) -> Progress:
        """The subagent's status now."""
        task = self.member.task
        if task is None or not task.done():
            spent = self.member.spent()
            # The time differs in each answer, so that polling does not count as repeating a call.
            elapsed_s = self._clock() - self._started_s
            return Progress(
                "running", why=f"for {elapsed_s:.0f} s, {spent.steps} steps, {spent.usage.output_tokens} tokens"
            )
        finished: dict[str, Any] | None = self._events.finished
        if finished is None:
            return Progress("cancelled" if task.cancelled() else "failed", why="it ended before it began")
        stop = finished["stop"]
        answer = finished["answer"] or self._last_said
        return Progress(finished["status"], answer, f"{stop['hook']}, {stop['rule']}: {stop['reason']}")


@dataclass(frozen=True)
class Assignment:
    """A task for a subagent: the call that assigns it, and that call's run and family member."""

    name: str
    task: str
    background: bool
    call_id: str
    run: RunInFlight
    parent: Member


def start(
    work: Assignment, definition: Subagent, model: Model, tools: ParentTools, clock: Callable[[], float]
) -> SubagentRun:
    """Start a subagent on its task; `model` is for a definition without one."""
    run, parent = work.run, work.parent
    member = parent.family.join(parent, work.call_id, background=work.background)
    flows = tuple(hook for hook in run.hooks if isinstance(hook, _FLOW))
    inherited = tuple(hook for hook in run.hooks if hook.mandatory or hook.innermost or hook in flows)
    agent = Agent(
        model=definition.model or model,
        capabilities=(
            # First, so that the operator's hooks are outside of the subagent's own, as in the parent.
            Capability("inherited", hooks=inherited),
            *((Capability("flow"),) if flows else ()),  # replaces the default one: its hooks are inherited
            # Replaces the default limits: the run's own are among the inherited hooks.
            Capability("limits", hooks=(SubagentBudget(work.name, member, definition),)),
        ),
        system_prompt=definition.system_prompt,
        name=work.name,
        host=Host(clock=clock, executor=tools, context=run.context),
    )
    state = AgentState(
        run_id=run.state.run_id,
        thread=run.state.thread,
        agent=work.name,
        depth=run.state.depth + 1,
        messages=(Message(role="user", content=work.task),),
        notes={MEMBER_NOTE: member.id},
        others=parent.family.others(member),
        # Including the parent's current step, so that a time limit leaves the subagent what the run has left.
        active_s=run.state.active_s + clock() - parent.step_started_s,
    )
    started = SubagentRun(work.name, work.task, member, NestedEvents(run.events, work.call_id), clock)
    started.begin(agent, state)
    return started


def shortened(text: str, limit_chars: int) -> str:
    """Return the text, or its start and how much is left out."""
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}\n[... {len(text) - limit_chars} characters cut]"
