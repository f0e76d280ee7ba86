"""The agent's loop: a skeleton that calls hooks at their points. What the agent does, its hooks and tools do.

    execution_start
    each step: before_step, before_inference, the model inside its rings, after_inference,
               the tool calls (agent.tools.runner), after_step, should_continue
    execution_end, however the run ends

After each point a Forbid ends the run. While tool calls wait for an approval the run is suspended: it returns its state
with `pending` and resumes that step when it gets the state again; so does a run whose process was lost
(agent.tools.recovery). A step costs the same whatever the length of the thread.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from agent.cancellation import Cancellation, TimeLeft, to_the_end
from agent.capabilities.limits import time_left_s
from agent.errors import HookFailed, ModelError
from agent.events import EventSink, RunStatus, emit, times
from agent.frozen import freeze, storable_text
from agent.hooks.engine import HOOK_FAILED, HookEngine
from agent.hooks.hook import InferenceRequest, Point
from agent.messages import Message, ToolCall, storable_message
from agent.models.inference import Inference
from agent.models.model import Model
from agent.state import TIMES, AgentState, ContinuationDecision, ContinuationOutcome, CurrentExecution, ModelResponse
from agent.tool_call import CallContext
from agent.tools.approval import Approver, PendingStep, Suspended, edited_calls
from agent.tools.recovery import EarlierCall, Recovery
from agent.tools.runner import ToolRunner
from agent.tools.tool import ToolExecutor

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Host:
    """What the program around an agent provides; the defaults suit a script.

    `executor` runs the tool calls in place of a Toolbox of the agent's tools. Without an `approver`, calls that need an
    approval are blocked. A `recovery` belongs to one run. `concurrency` is how many tool calls of a step run at once.
    `context` is what is known of each call.
    """

    executor: ToolExecutor | None = None
    approver: Approver | None = None
    recovery: Recovery | None = None
    concurrency: int = 8
    context: CallContext = field(default_factory=CallContext)
    clock: Callable[[], float] = time.monotonic
    new_call_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}"

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What a run needs of its agent."""

    model: Model
    hooks: HookEngine
    executor: ToolExecutor
    system_prompt: str
    name: str
    host: Host


class Run:
    """One run in progress. `state` is always the latest, whenever the run ends."""

    def __init__(self, agent: Parts, state: AgentState, events: EventSink) -> None:
        self.agent = agent
        self.host = agent.host
        self.events = events
        self.state = state.with_(
            agent=agent.name,
            system_prompt=storable_text(state.system_prompt or agent.system_prompt),
            # A caller may have set them with with_().
            metadata=freeze(state.metadata),
            notes=freeze(state.notes),
            stop=None,
        ).cleared()
        self.failed = False
        self.step_started_s = 0.0
        self.deadline_s = math.inf
        self.cancellation: Cancellation

    async def run(self) -> AgentState:
        started = {"agent": self.state.agent, "thread": self.state.thread}
        if self.state.started:
            emit(self.events, "run_resumed", step=self.state.steps, **started)
        else:
            asked = (message.content for message in reversed(self.state.messages) if message.role == "user")
            emit(self.events, "run_started", task=next(asked, ""), **started)
        status: RunStatus = "failed"
        stop = _outcome("interrupted", "the run was interrupted")
        try:
            try:
                stop = await self._steps()
                status = "stopped" if stop.decision is ContinuationDecision.FORBID else "completed"
                status = "failed" if self.failed else status
            except asyncio.CancelledError:
                status, stop = "cancelled", _CANCELLED
                await self._end(stop)
                raise
            except Suspended as suspended:
                self.state = self.state.cleared()
                sought: list[JsonValue] = [vars(one) for one in suspended.sought]
                emit(self.events, "run_suspended", step=self.state.steps, approvals=sought)
                return self.state
            except Exception as error:
                # Failures of hooks, tools and the model are handled elsewhere: this is a bug in this package.
                _log.exception("run %s failed", self.state.run_id)
                stop = _outcome("internal_error", f"{type(error).__name__}: {error}")
            await self._end(stop)
            return self.state
        except asyncio.CancelledError:
            if status != "cancelled":  # during execution_end of a run that had ended by itself
                status, stop = "cancelled", _CANCELLED
                self.state = self.state.with_(stop=stop)
            raise
        finally:
            if self.state.pending is None:
                emit(
                    self.events,
                    "run_finished",
                    status=status,
                    stop={"hook": stop.hook, "rule": stop.rule, "reason": stop.reason},
                    answer=self.state.answer,
                    steps=self.state.steps,
                    usage=self.state.usage.model_dump(),
                    spent=self.state.spent.model_dump(),
                    **times(self.state),
                )

    async def _steps(self) -> ContinuationOutcome:
        """Take steps until one stops the run; return what stopped it."""
        stop = None
        self.cancellation = await Cancellation.watch()
        if not self.state.started:
            stop = await self._at("execution_start")
            self.state = self.state.with_(started=True)
        if stop is None and self.state.pending is not None:
            stop = await self._resumed_step(PendingStep.model_validate(self.state.pending))
        while stop is None:
            # Hooks, model and tools may all finish without waiting: let other tasks, and a cancellation, run.
            await asyncio.sleep(0)
            stop = await self._step()
        return stop

    async def _step(self) -> ContinuationOutcome | None:
        """Take one step; return what stops the run, or None to go on."""
        messages = self.state.messages
        # The time of execution_start belongs to the first step.
        self._begin_step(self.state.system_prompt, hooks_s=self.state.current.hooks_s)
        if (stop := await self._at("before_step")) is not None:
            return stop
        self.deadline_s = self.step_started_s + time_left_s(self.agent.hooks.hooks, self.state)
        if self.state.current.input_messages is messages:
            # The inference also sees what hooks appended at before_step.
            self.state = self.state.with_current(input_messages=self.state.messages)
        self.state = self.state.with_(steps=self.state.steps + 1)
        emit(self.events, "step_started", step=self.state.steps)
        return await self._timed(self._think_and_act())

    def _begin_step(self, system_prompt: str, **known: Any) -> None:
        self.step_started_s, tools = self.host.clock(), tuple(self.agent.executor.specs())
        current = CurrentExecution(self.step_started_s, None, self.state.messages, system_prompt, tools, **known)
        self.state = self.state.with_(current=current)

    async def _resumed_step(self, pending: PendingStep) -> ContinuationOutcome | None:
        """Resume the step that waited: the model has answered, and its calls are judged again."""
        response = pending.response()
        kept = {name: getattr(pending, name) for name in ("continuation", "hooks_s", "model_s", "model_wait_s")}
        self.state = self.state.with_(pending=None)
        self._begin_step(pending.system_prompt, response=response, **kept)
        self.deadline_s = self.step_started_s + time_left_s(self.agent.hooks.hooks, self.state)
        calls: Sequence[ToolCall] = response.message.tool_calls
        if self.host.approver is not None:
            sought = {one.call_id for one in pending.sought}
            calls = await edited_calls(self.host.approver, self.state, calls, sought)
        earlier = await self.host.recovery.earlier(calls) if self.host.recovery is not None else {}
        return await self._timed(self._act(response, calls, earlier))

    async def _timed(self, work: Awaitable[ContinuationOutcome | None]) -> ContinuationOutcome | None:
        """Count the time of a step up to its end or suspension; return what stops the run, or None to go on."""
        try:
            stop = await work
        finally:
            completed_s = self.host.clock()
            active_s = self.state.active_s + completed_s - self.step_started_s
            self.state = self.state.with_current(completed_at_s=completed_s).with_(active_s=active_s)
            if self.state.pending is None:
                emit(self.events, "step_finished", step=self.state.steps, **times(self.state.current))
        if stop is None:
            self._clear()
        return stop

    async def _think_and_act(self) -> ContinuationOutcome | None:
        if (stop := await self._at("before_inference")) is not None:
            return stop
        try:
            answer = await self._infer()
        except Exception as error:  # on_error judges whatever a model driver or a ring raises
            self.cancellation.heed()
            return await self._failed(error)
        self.cancellation.heed()
        if answer is None:
            return None  # before_step checks the time limit and says why the run ends
        stop = await self._at("after_inference")
        response = self.state.current.response or answer  # a hook may replace the response but not remove it
        calls = response.message.tool_calls if stop is None else ()
        if calls and self.host.recovery is not None:
            pending = PendingStep.of(self.state, response).model_dump(mode="json")
            active_s = self.state.active_s + self.host.clock() - self.step_started_s
            await self.host.recovery.answered(self.state.with_(pending=pending, active_s=active_s))
        return await self._act(response, calls)

    async def _act(
        self, response: ModelResponse, calls: Sequence[ToolCall], earlier: Mapping[str, EarlierCall] | None = None
    ) -> ContinuationOutcome | None:
        """Run the tool calls, except the `earlier` ones, and end the step; return what stops the run, or None."""
        before = self.state
        if calls:
            agent, host = self.agent, self.host
            how = (host.clock, host.concurrency, host.approver)
            runner = ToolRunner(agent.hooks, agent.executor, self.events, *how, left_s=self._left_s)
            try:
                self.state = await runner.run(
                    self.state, calls, keep=self._keep, suspend=True, earlier=earlier, context=host.context
                )
            except Suspended as suspended:
                pending = PendingStep.of(before, response, suspended).model_dump(mode="json")
                # The hooks judge the calls again later, so their changes are dropped, except what relatives spent.
                self.state = before.with_(pending=pending, others=suspended.state.others)
                raise
            except asyncio.CancelledError:
                # The thread keeps what was said and done; _end answers the calls that did not start.
                self._say(storable_message(response.message), *self._tool_messages())
                raise
        self._say(storable_message(response.message), *self._tool_messages())
        if forbidden := self._forbidden():
            # A hook may append a message next, and endpoints accept nothing between a call and its answer.
            self._answer_open_calls(forbidden)
        # Also after a Forbid: no early end skips a hook. Nothing reverses a Forbid, so the last reading counts.
        await self._at("after_step")
        stop = await self._at("should_continue")
        if stop is not None:
            return stop
        resolved = self.state.current.continuation
        if resolved is None:
            return _outcome("no_request", "no hook asked for another step", ContinuationDecision.ALLOW_STOP)
        if resolved.decision is not ContinuationDecision.REQUEST:
            return resolved
        if not response.message.tool_calls:
            self.state = self.state.with_(forced_continuations=self.state.forced_continuations + 1)
        return None

    def _left_s(self) -> float:
        return self.deadline_s - self.host.clock()

    async def _infer(self) -> ModelResponse | None:
        """Return the model's answer; None when the run's time was over first."""
        response = None
        agent, current = self.agent, self.state.current
        now, new_id, step = self.host.clock, self.host.new_call_id, self.state.steps
        inference = Inference(agent.hooks, agent.model, self.events, now, new_id, step)
        asked = (current.system_prompt, current.input_messages, current.tools, current.output_schema)
        request = InferenceRequest(*asked, thread=self.state.thread, agent=self.state.agent)
        try:
            async with TimeLeft(self._left_s()):
                response = await inference.run(request, self.cancellation)
        finally:
            self.state = self.state.with_(usage=self.state.usage + inference.usage).with_current(
                model_s=inference.model_s,
                model_wait_s=inference.model_wait_s,
                hooks_s=self.state.current.hooks_s + inference.rings_s,
            )
        if response is not None:
            self.state = self.state.with_response(response)
        return response

    def _tool_messages(self) -> list[Message]:
        return [
            Message(
                role="tool",
                tool_call_id=execution.requested.id,
                content=result.text(),
                attachments=result.attachments,
            )
            for execution in self.state.current.tool_executions
            if (result := execution.result) is not None
        ]

    def _keep(self, state: AgentState) -> None:
        self.state = state

    def _say(self, *messages: Message) -> None:
        output = (*self.state.current.output_messages, *messages)
        self.state = self.state.say(*messages).with_current(output_messages=output)

    async def _failed(self, error: Exception) -> ContinuationOutcome | None:
        """Let the hooks judge an error; return what stops the run, or None to go on."""
        self.state = self.state.with_current(errors=(*self.state.current.errors, error))
        if not isinstance(error, ModelError):
            self.state = self.state.with_current(response=None)
        if isinstance(error, HookFailed):
            self.state = self.state.forbid_continuation(error.hook, HOOK_FAILED, str(error))
        before = self.state.current.continuation
        self.state = await self.agent.hooks.run("on_error", self.state, self.events)
        resolved = self.state.current.continuation
        if resolved is not None and resolved.decision is ContinuationDecision.REQUEST:
            if not isinstance(error, ModelError):
                self._say(Message(role="user", content=f"[the last step failed: {error}]"))
            return None
        self.failed = True
        if resolved is not None and (resolved is not before or resolved.decision is ContinuationDecision.FORBID):
            return resolved
        return _outcome(type(error).__name__, str(error))

    async def _at(self, point: Point) -> ContinuationOutcome | None:
        errors = len(self.state.current.errors)
        self.state = await self.agent.hooks.run(point, self.state, self.events)
        if len(self.state.current.errors) > errors:  # a closed hook failed and forbade; on_error hooks see the error
            self.failed = True
            self.state = await self.agent.hooks.run("on_error", self.state, self.events)
        return self._forbidden()

    def _forbidden(self) -> ContinuationOutcome | None:
        found = self.state.current.continuation
        return found if found is not None and found.decision is ContinuationDecision.FORBID else None

    def _clear(self) -> None:
        spent_s = {name: getattr(self.state, name) + getattr(self.state.current, name) for name in TIMES}
        self.state = self.state.with_(**spent_s).cleared()

    async def _end(self, stop: ContinuationOutcome) -> None:
        """Leave a thread that can be continued, and run execution_end."""
        self._clear()
        self._answer_open_calls(stop)
        self.state = self.state.with_(stop=stop)
        await to_the_end(self._run_execution_end())

    async def _run_execution_end(self) -> None:
        self.state = await self.agent.hooks.run("execution_end", self.state, self.events)
        self._clear()

    def _answer_open_calls(self, stop: ContinuationOutcome) -> None:
        """Answer the tool calls that a stop left open: endpoints refuse a thread with unanswered calls."""
        messages = self.state.messages
        position = len(messages)
        while position and messages[position - 1].role == "tool":
            position -= 1
        if not position or not messages[position - 1].tool_calls:
            return
        answered = {message.tool_call_id for message in messages[position:]}
        content = f"[not finished: the run ended ({stop.hook}, {stop.rule}: {stop.reason})]"
        missing = tuple(
            Message(role="tool", tool_call_id=call.id, content=content)
            for call in messages[position - 1].tool_calls
            if call.id not in answered
        )
        self.state = self.state.with_(messages=(*messages, *missing))


def _outcome(
    rule: str, reason: str, decision: ContinuationDecision = ContinuationDecision.FORBID
) -> ContinuationOutcome:
    return ContinuationOutcome(decision=decision, hook="loop", rule=rule, reason=reason)


_CANCELLED = _outcome("cancelled", "the run was cancelled")
