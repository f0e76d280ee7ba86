"""The agent's loop: a skeleton that calls hooks at their points. What the agent does, its hooks and tools do.

    execution_start
    each step: before_step, before_inference, the model inside its rings, after_inference,
               the tool calls (agent.tools.runner), after_step, should_continue
    execution_end, however the run ends

After each point a Forbid ends the run. At the end of a step a Request starts another one; otherwise the run ends. While
tool calls wait for an approval the run is suspended: it returns its state with `pending` and resumes that step when it
gets the state again; so does a run whose process was lost (agent.tools.recovery). A step costs the same whatever the
length of the thread, except for the tuple of its messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

from agent.cancellation import Cancellation, to_the_end
from agent.capabilities.limits import TimeLeft, ToolsInTime, time_left_s
from agent.decisions import ContinuationDecision, ContinuationOutcome
from agent.errors import HookFailed, ModelError
from agent.events import EventSink, RunStatus, emit, emit_finished, emit_started, emit_suspended, times
from agent.frozen import freeze, storable_text
from agent.hooks.engine import HOOK_FAILED, HookEngine, Point
from agent.hooks.hook import InferenceRequest
from agent.host import Host
from agent.messages import Message, ToolCall, storable_message
from agent.models.inference import Inference
from agent.models.model import Model
from agent.state import AgentState, CurrentExecution, ModelResponse
from agent.tools.approval import PendingStep, Suspended
from agent.tools.asking import edited_calls
from agent.tools.recovery import EarlierCall
from agent.tools.runner import ToolRunner
from agent.tools.tool import ToolExecutor

_log = logging.getLogger(__name__)


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
        self.deadline_s = math.inf
        self.cancellation: Cancellation

    async def run(self) -> AgentState:
        """Run to the end; see Agent.run."""
        emit_started(self.events, self.state)
        status: RunStatus = "failed"
        stop = _outcome("interrupted", "the run was interrupted")
        try:
            try:
                stop = await self._steps()
                status = self._status(stop)
            except asyncio.CancelledError:
                status, stop = "cancelled", _outcome("cancelled", "the run was cancelled")
                await self._end(stop)
                raise
            except Suspended as suspended:
                self.state = self.state.cleared()
                emit_suspended(self.events, self.state, suspended.sought)
                return self.state
            except Exception as error:
                # Failures of hooks, tools and the model are handled elsewhere: this is a bug in this package.
                _log.exception("run %s failed", self.state.run_id)
                stop = _outcome("internal_error", f"{type(error).__name__}: {error}")
            await self._end(stop)
            return self.state
        except asyncio.CancelledError:
            if status != "cancelled":  # during execution_end of a run that had ended by itself
                status, stop = "cancelled", _outcome("cancelled", "the run was cancelled")
                self.state = self.state.with_(stop=stop)
            raise
        finally:
            if self.state.pending is None:
                emit_finished(self.events, self.state, status, stop)

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
        started_s = self.host.clock()
        messages = self.state.messages
        self.state = self.state.with_(
            current=CurrentExecution(
                started_at_s=started_s,
                input_messages=messages,
                system_prompt=self.state.system_prompt,
                tools=tuple(self.agent.executor.specs()),
                # The time of execution_start belongs to the first step.
                hooks_s=self.state.current.hooks_s,
            )
        )
        stop = await self._at("before_step")
        if stop is not None:
            return stop
        self.deadline_s = started_s + time_left_s(self.agent.hooks.hooks, self.state)
        if self.state.current.input_messages is messages:
            # The inference also sees what hooks appended at before_step.
            self.state = self.state.with_current(input_messages=self.state.messages)
        number = self.state.steps + 1
        emit(self.events, "step_started", step=number)
        self.state = self.state.with_(steps=number)
        return await self._timed(self._think_and_act(number), number, started_s)

    async def _resumed_step(self, pending: PendingStep) -> ContinuationOutcome | None:
        """Resume the step that waited: the model has answered, and its calls are judged again."""
        started_s = self.host.clock()
        response = pending.response()
        self.state = self.state.with_(
            pending=None,
            current=CurrentExecution(
                started_at_s=started_s,
                input_messages=self.state.messages,
                system_prompt=pending.system_prompt,
                tools=tuple(self.agent.executor.specs()),
                response=response,
                continuation=pending.continuation,
                hooks_s=pending.hooks_s,
                model_s=pending.model_s,
                model_wait_s=pending.model_wait_s,
            ),
        )
        self.deadline_s = started_s + time_left_s(self.agent.hooks.hooks, self.state)
        calls: Sequence[ToolCall] = response.message.tool_calls
        if self.host.approver is not None:
            sought = {one.call_id for one in pending.sought}
            calls = await edited_calls(self.host.approver, self.state, calls, sought)
        earlier = await self.host.recovery.earlier(calls) if self.host.recovery is not None else {}
        return await self._timed(self._act(response, calls, earlier), self.state.steps, started_s)

    async def _timed(
        self, work: Awaitable[ContinuationOutcome | None], number: int, started_s: float
    ) -> ContinuationOutcome | None:
        """Count the time of a step up to its end or suspension; return what stops the run, or None to go on."""
        suspended = False
        try:
            stop = await work
        except Suspended:
            suspended = True
            raise
        finally:
            self.state = self.state.with_(active_s=self.state.active_s + self.host.clock() - started_s).with_current(
                completed_at_s=self.host.clock()
            )
            if not suspended:
                emit(self.events, "step_finished", step=number, **times(self.state.current))
        if stop is None:
            self._clear()
        return stop

    async def _think_and_act(self, number: int) -> ContinuationOutcome | None:
        stop = await self._at("before_inference")
        if stop is not None:
            return stop
        try:
            answer = await self._infer(number)
        except asyncio.CancelledError:
            raise
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
            await self.host.recovery.answered(self._answered(response))
        return await self._act(response, calls)

    def _answered(self, response: ModelResponse) -> AgentState:
        """Return the state from which another process can resume this step."""
        state = self.state
        pending = PendingStep.of(state, response).model_dump(mode="json")
        active_s = state.active_s + self.host.clock() - state.current.started_at_s
        return state.with_(pending=pending, active_s=active_s)

    async def _act(
        self,
        response: ModelResponse,
        calls: Sequence[ToolCall],
        earlier: Mapping[str, EarlierCall] | None = None,
    ) -> ContinuationOutcome | None:
        """Run the tool calls, except the `earlier` ones, and end the step; return what stops the run, or None."""
        before = self.state
        if calls:
            tools = ToolsInTime(self.agent.executor, self._left_s)
            runner = ToolRunner(
                self.agent.hooks, tools, self.events, self.host.clock, self.host.concurrency, self.host.approver
            )
            try:
                context = self.host.context
                self.state = await runner.run(
                    self.state, calls, keep=self._keep, suspend=True, earlier=earlier, context=context
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
        """Return what is left of the run's time, within the step."""
        return self.deadline_s - self.host.clock()

    async def _infer(self, number: int) -> ModelResponse | None:
        """Return the model's answer; None when the run's time was over first."""
        response = None
        agent, current = self.agent, self.state.current
        inference = Inference(agent.hooks, agent.model, self.events, self.host.clock, self.host.new_call_id)
        request = InferenceRequest(current.system_prompt, current.input_messages, current.tools)
        try:
            async with TimeLeft(self._left_s()):
                response = await inference.run(request, number, self.cancellation)
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
            Message(role="tool", tool_call_id=execution.requested.id, content=execution.result.text())
            for execution in self.state.current.tool_executions
            if execution.result is not None
        ]

    def _keep(self, state: AgentState) -> None:
        self.state = state

    def _say(self, *messages: Message) -> None:
        self.state = self.state.with_(messages=(*self.state.messages, *messages)).with_current(
            output_messages=(*self.state.current.output_messages, *messages)
        )

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
        """Run the hooks of a point; return the Forbid that ends the run there."""
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
        state, current = self.state, self.state.current
        self.state = state.with_(
            hooks_s=state.hooks_s + current.hooks_s,
            model_s=state.model_s + current.model_s,
            model_wait_s=state.model_wait_s + current.model_wait_s,
            tools_s=state.tools_s + current.tools_s,
        ).cleared()

    def _status(self, stop: ContinuationOutcome) -> RunStatus:
        if self.failed:
            return "failed"
        return "stopped" if stop.decision is ContinuationDecision.FORBID else "completed"

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
