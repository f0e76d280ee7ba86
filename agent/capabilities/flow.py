"""What continues or ends a run apart from limits: tool calls, the finish reason, and errors."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from agent.errors import ContextLengthExceeded, HookFailed, ModelError, ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest, NextInference, Retry
from agent.state import AgentState, ContinuationDecision, ModelResponse
from agent.tools.tool import Capability

OnError = Literal["stop", "continue"]
OnCutAnswer = Literal["stop", "accept"]

# By finish reason: the rule that stops the run, and why.
_CUT_ANSWERS = {
    "length": ("model_cut", "the answer was cut at the token limit: raise the model's max_output_tokens"),
    "content_filter": ("model_cut", "the answer was cut by the endpoint's content filter"),
    "refusal": ("model_refused", "the model refused the task"),
}

_MODEL_ERRORS = "flow.model_errors"  # how many steps in a row failed with one and were continued
_LIMIT_CONTINUED = 3
_LIMIT_WAIT_S = 60.0


class ToolCallPresence(Hook):
    """Requests another step when the response has tool calls: the model has not seen their results yet."""

    name = "tool_call_presence"

    async def after_step(self, state: AgentState) -> AgentState:
        response = state.current.response
        if response is None or not response.message.tool_calls:
            return state
        calls = len(response.message.tool_calls)
        return state.request_continuation(self.name, "tool_calls", f"the response has {calls} tool calls")


@dataclass(eq=False)
class FinishReason(Hook):
    """Ends the run with an answer, and says why the model stopped writing it.

    An incomplete answer, cut at the token limit or by a content filter, and a refusal stop the run, unless another hook
    requests a step because of it. With `on_cut_answer` "accept" they count as answers.
    """

    on_cut_answer: OnCutAnswer = "stop"
    name = "finish_reason"

    async def after_step(self, state: AgentState) -> AgentState:
        answer = state.current.final_answer
        if answer is None or self._refuses(answer):
            return state
        reason = answer.finish_reason
        _, said = _CUT_ANSWERS.get(reason, ("", "the model answered without a tool call"))
        return state.allow_stop(self.name, reason or "stop", f"{said} (finish reason {reason or 'not given'})")

    async def should_continue(self, state: AgentState) -> AgentState:
        answer = state.current.final_answer
        if answer is None or not self._refuses(answer) or _requested(state):
            return state
        rule, said = _CUT_ANSWERS[answer.finish_reason]
        return state.forbid_continuation(self.name, rule, f"{said} (finish reason {answer.finish_reason})")

    def _refuses(self, answer: ModelResponse) -> bool:
        return self.on_cut_answer != "accept" and answer.finish_reason in _CUT_ANSWERS


class ErrorSettings(TypedDict, total=False):
    """What ErrorPolicy may be given."""

    retries: int
    backoff_s: float
    on_model_error: OnError
    on_tool_error: OnError
    on_tool_blocked: OnError
    sleep: Callable[[float], Awaitable[None]]


@dataclass(eq=False, kw_only=True)
class ErrorPolicy(Hook):
    """Decides what an error does to the run.

    A retryable model error is followed by up to `retries` more attempts within the step. The first retry waits
    `backoff_s`, each further one four times longer, and at least as long as the endpoint asks, up to 60 s; an endpoint
    that asks for more is not asked again. Then `on_model_error` decides: "stop" ends the run unless another hook
    requests a step at on_error; "continue" requests one. After any other error, except a closed hook's, the model is
    shown the error. At most three steps in a row may fail and continue.

    `on_tool_error` and `on_tool_blocked` decide after a step with a failed or a blocked tool call: "continue" leaves it
    to the model, which sees the result. Tool calls are never retried: the effects of the failed attempt are unknown.
    """

    retries: int = 2
    backoff_s: float = 0.5
    on_model_error: OnError = "stop"
    on_tool_error: OnError = "continue"
    on_tool_blocked: OnError = "continue"
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    name = "error_policy"

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
                    asks = f"the endpoint asks for {asked_s:g} s, which is too long to wait"
                    raise _after(attempts, error, asks) from error
                if attempts > self.retries:
                    raise _after(attempts, error) from error
            request.progress.retrying(Retry(attempts + 1, self.retries + 1, wait_s))
            await self.sleep(wait_s)

    async def after_inference(self, state: AgentState) -> AgentState:
        return state.with_note(_MODEL_ERRORS, 0) if state.notes.get(_MODEL_ERRORS) else state

    async def after_step(self, state: AgentState) -> AgentState:
        for execution in state.current.tool_executions:
            name, verdict, result = _shortened(execution.call.name), execution.verdict, execution.result
            if execution.blocked and verdict is not None:
                if self.on_tool_blocked == "stop":
                    by = f"rule {verdict.rule} of {verdict.hook}: {verdict.reason}"
                    return state.forbid_continuation(self.name, "tool_blocked", f"tool {name} was blocked by {by}")
            elif result is not None and result.is_error and self.on_tool_error == "stop":
                said = f"tool {name} ended with outcome {result.outcome}: {_shortened(result.text())}"
                return state.forbid_continuation(self.name, "tool_error", said)
        return state

    async def on_error(self, state: AgentState) -> AgentState:
        error = state.current.errors[-1]
        if isinstance(error, HookFailed):
            return state
        rule = type(error).__name__
        if _requested(state) and isinstance(error, ContextLengthExceeded):
            return state
        continued = state.count(_MODEL_ERRORS)
        if continued >= _LIMIT_CONTINUED:  # even if another hook requested each of them
            reason = f"{continued + 1} steps failed in a row, {_LIMIT_CONTINUED} may; the last time: {error}"
            return state.forbid_continuation(self.name, rule, reason)
        state = state.with_note(_MODEL_ERRORS, continued + 1)
        if isinstance(error, ModelError) and self.on_model_error == "stop":
            return state.allow_stop(self.name, rule, str(error))
        if not isinstance(error, ModelError):
            return state.request_continuation(self.name, "show_error", f"the model is shown the error: {error}")
        reason = f"asked again after failed step {continued + 1} of {_LIMIT_CONTINUED} allowed in a row: {error}"
        return state.request_continuation(self.name, rule, reason)


def _requested(state: AgentState) -> bool:
    written = state.current.continuation
    return written is not None and written.decision is ContinuationDecision.REQUEST


def _after(attempts: int, error: ModelError, besides: str = "") -> ModelError:
    """Return a copy of the error that counts the attempts: a ring has no state to count them in."""
    said = f"{error}; {besides}" if besides else str(error)
    copied = type(error).__new__(type(error))  # independent of its constructor's parameters
    copied.__dict__.update(error.__dict__)
    copied.args = (said if attempts == 1 else f"{attempts} attempts failed; the last one: {said}",)
    return copied


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def flow(*, on_cut_answer: OnCutAnswer = "stop", **error_policy: Unpack[ErrorSettings]) -> Capability:
    """Return the hooks that take an agent from step to step; the defaults are those of ErrorPolicy."""
    return Capability("flow", hooks=(ToolCallPresence(), FinishReason(on_cut_answer), ErrorPolicy(**error_policy)))
