"""What makes a run go on or end when no limit does: tool calls, the finish reason, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from agent.capabilities.capability import Capability
from agent.decisions import ContinuationDecision
from agent.errors import ContextLengthExceeded, HookFailed, ModelError, ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest, NextInference
from agent.state import AgentState, ModelResponse, ToolExecution

OnError = Literal["stop", "continue"]
OnCutAnswer = Literal["stop", "accept"]

# By finish reason: the rule that stops the run, and why.
_CUT_ANSWERS = {
    "length": ("model_cut", "the answer was cut at the model's token limit"),
    "content_filter": ("model_cut", "the answer was cut by the endpoint's content filter"),
    "refusal": ("model_refused", "the model refused the task"),
}

_MODEL_ERRORS = "flow.model_errors"  # how many steps in a row failed with one and were continued
_LIMIT_CONTINUED = 3
_LIMIT_WAIT_S = 60.0
_SHOWN_CHARS = 200


class ToolCallPresence(Hook):
    """Goes on when the response has tool calls: the model has not seen their results yet."""

    name = "tool_call_presence"

    async def after_step(self, state: AgentState) -> AgentState:
        response = state.current.response
        if response is None or not response.message.tool_calls:
            return state
        calls = len(response.message.tool_calls)
        return state.request_continuation(self.name, "tool_calls", f"the response has {calls} tool calls")


class FinishReason(Hook):
    """Lets the run end with an answer, and says why the model stopped writing it.

    An answer that was cut, at the token limit or by a content filter, and the model's refusal stop the run: nobody has
    the answer that was asked for. `on_cut_answer` "accept" takes them as answers. A hook that asked for another step
    because of such an answer gets it.
    """

    name = "finish_reason"

    def __init__(self, *, on_cut_answer: OnCutAnswer = "stop") -> None:
        self.on_cut_answer = on_cut_answer

    async def after_step(self, state: AgentState) -> AgentState:
        reason = self._reason(state)
        if reason is None or self._cut(reason) is not None:
            return state
        _, said = _CUT_ANSWERS.get(reason, ("", "the model answered without a tool call"))
        return state.allow_stop(self.name, reason or "stop", f"{said} (finish reason {reason or 'not given'})")

    async def should_continue(self, state: AgentState) -> AgentState:
        cut = self._cut(self._reason(state))
        written = state.current.continuation
        if cut is None or (written is not None and written.decision is ContinuationDecision.REQUEST):
            return state
        rule, said = cut
        return state.forbid_continuation(self.name, rule, said)

    def _reason(self, state: AgentState) -> str | None:
        """Return the finish reason of a final answer; None where the response is none."""
        response = state.current.response
        return None if response is None or response.message.tool_calls else response.finish_reason

    def _cut(self, reason: str | None) -> tuple[str, str] | None:
        """Return the rule that stops the run and what it says, None for an answer that is taken."""
        if reason is None or self.on_cut_answer == "accept" or reason not in _CUT_ANSWERS:
            return None
        rule, said = _CUT_ANSWERS[reason]
        return rule, f"{said} (finish reason {reason})"


class ErrorPolicy(Hook):
    """Decides what an error does to the run.

    A model error that another attempt may mend is followed by up to `retries` more attempts within the step. Before
    the first one it waits `backoff_s`, before each further one four times longer, and never shorter than the endpoint
    asks for; but no wait is longer than 60 s, and an endpoint that asks for more is not asked again. An attempt that
    failed in the middle of its answer leaves nothing behind. Then `on_model_error` decides: "stop" lets the run end,
    unless another hook requests a step at on_error; "continue" requests one. Three steps in a row may fail and be
    followed by another; a hook that has made messages shorter because they were too long may ask more often.

    `on_tool_error` and `on_tool_blocked` decide after a step with a failed or a blocked tool call: "continue" leaves it
    to the model, which has been told; "stop" ends the run. No tool call is ever made a second time here: what the first
    one did before it failed nobody knows, and the model can look and decide.

    The failure of a closed hook has already ended the run. After any other error the run goes on, three steps in a row
    at most, and the model is shown the error.
    """

    name = "error_policy"

    def __init__(
        self,
        *,
        retries: int = 2,
        backoff_s: float = 0.5,
        on_model_error: OnError = "stop",
        on_tool_error: OnError = "continue",
        on_tool_blocked: OnError = "continue",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.retries = retries
        self.backoff_s = backoff_s
        self.on_model_error = on_model_error
        self.on_tool_error = on_tool_error
        self.on_tool_blocked = on_tool_blocked
        self._sleep = sleep

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        attempts = 0
        while True:
            attempts += 1
            try:
                return await next_(request)
            except ModelError as error:
                if not error.retryable:
                    raise
                asked_s = (error.retry_after_s if isinstance(error, ModelUnavailable) else None) or 0.0
                wait_s = min(max(self.backoff_s * 4 ** min(attempts - 1, 16), asked_s), _LIMIT_WAIT_S)
                if asked_s > _LIMIT_WAIT_S:
                    left_alone = f"the endpoint asks for {asked_s:g} s, which is too long to wait"
                    raise _after(attempts, error, left_alone) from error
                if attempts > self.retries:
                    raise _after(attempts, error) from error
            await self._sleep(wait_s)

    async def after_inference(self, state: AgentState) -> AgentState:
        return state.with_note(_MODEL_ERRORS, 0) if state.notes.get(_MODEL_ERRORS) else state

    async def after_step(self, state: AgentState) -> AgentState:
        for execution in state.current.tool_executions:
            if execution.blocked and self.on_tool_blocked == "stop":
                return state.forbid_continuation(self.name, "tool_blocked", _blocked(execution))
            failed = not execution.blocked and execution.result is not None and execution.result.is_error
            if failed and self.on_tool_error == "stop":
                return state.forbid_continuation(self.name, "tool_error", _failed(execution))
        return state

    async def on_error(self, state: AgentState) -> AgentState:
        error = state.current.errors[-1]
        if isinstance(error, HookFailed):
            return state
        rule = type(error).__name__
        written = state.current.continuation
        asked = written is not None and written.decision is ContinuationDecision.REQUEST
        if asked and isinstance(error, ContextLengthExceeded):
            return state
        noted = state.notes.get(_MODEL_ERRORS)
        continued = noted if isinstance(noted, int) else 0
        if continued >= _LIMIT_CONTINUED:  # also where another hook asked for each of them
            reason = f"{continued + 1} steps failed in a row, {_LIMIT_CONTINUED} may; the last time: {error}"
            return state.forbid_continuation(self.name, rule, reason)
        state = state.with_note(_MODEL_ERRORS, continued + 1)
        if isinstance(error, ModelError) and self.on_model_error == "stop":
            return state.allow_stop(self.name, rule, str(error))
        if not isinstance(error, ModelError):
            return state.request_continuation(self.name, "show_error", f"the model is shown the error: {error}")
        reason = f"asked again after failed step {continued + 1} of {_LIMIT_CONTINUED} allowed in a row: {error}"
        return state.request_continuation(self.name, rule, reason)


def _after(attempts: int, error: ModelError, besides: str = "") -> ModelError:
    """Return the error, of the same class, as it is after so many attempts: a ring has no state to count them in."""
    said = f"{error}; {besides}" if besides else str(error)
    told = type(error).__new__(type(error))  # whatever its constructor takes
    told.__dict__.update(error.__dict__)
    told.args = (said if attempts == 1 else f"{attempts} attempts failed; the last one: {said}",)
    return told


def _blocked(execution: ToolExecution) -> str:
    verdict = execution.verdict
    by = f"rule {verdict.rule} of {verdict.hook}: {verdict.reason}" if verdict is not None else "a hook"
    return f"tool {_shortened(execution.call.name)} was blocked by {by}"


def _failed(execution: ToolExecution) -> str:
    outcome = execution.result.outcome if execution.result is not None else "failed"
    said = execution.result.text() if execution.result is not None else ""
    return f"tool {_shortened(execution.call.name)} ended with outcome {outcome}: {_shortened(said)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def flow(
    *,
    retries: int = 2,
    backoff_s: float = 0.5,
    on_model_error: OnError = "stop",
    on_tool_error: OnError = "continue",
    on_tool_blocked: OnError = "continue",
    on_cut_answer: OnCutAnswer = "stop",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Capability:
    """Return what an agent needs to go from step to step."""
    policy = ErrorPolicy(
        retries=retries,
        backoff_s=backoff_s,
        on_model_error=on_model_error,
        on_tool_error=on_tool_error,
        on_tool_blocked=on_tool_blocked,
        sleep=sleep,
    )
    return Capability("flow", hooks=(ToolCallPresence(), FinishReason(on_cut_answer=on_cut_answer), policy))
