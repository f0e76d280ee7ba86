"""What makes a run go on or end when no limit does: tool calls, the finish reason, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent.capability import Capability
from agent.errors import HookFailed, ModelError
from agent.hook import Hook
from agent.state import AgentState

_MODEL_ERRORS = "error_policy.model_errors"


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
    """Lets the run end with an answer, and says why the model stopped writing it."""

    name = "finish_reason"

    async def after_step(self, state: AgentState) -> AgentState:
        response = state.current.response
        if response is None or response.message.tool_calls:
            return state
        reason = response.finish_reason
        match reason:
            case "length":
                said = "the answer was cut at the model's token limit"
            case "content_filter":
                said = "the answer was cut by the endpoint's content filter"
            case _:
                said = "the model answered without a tool call"
        return state.allow_stop(self.name, reason or "stop", f"{said} (finish reason {reason or 'not given'})")


class ErrorPolicy(Hook):
    """Asks a failing model again, with backoff, `retries` times in a row; then the run ends with the error.

    A refusal is final at once. The failure of a closed hook has already ended the run. After other errors the run goes
    on, and the model is shown the error.
    """

    name = "error_policy"

    def __init__(
        self, *, retries: int = 2, backoff_s: float = 0.5, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.retries = retries
        self.backoff_s = backoff_s
        self._sleep = sleep

    async def on_error(self, state: AgentState) -> AgentState:
        error = state.current.errors[-1]
        if isinstance(error, HookFailed):
            return state
        if not isinstance(error, ModelError):
            return state.request_continuation(self.name, "show_error", f"the model is shown the error: {error}")
        rule = type(error).__name__
        if not error.retryable:
            return state.forbid_continuation(self.name, rule, str(error))
        seen = state.metadata.get(_MODEL_ERRORS, 0)
        errors = (seen if isinstance(seen, int) else 0) + 1
        if errors > self.retries:
            return state.forbid_continuation(self.name, rule, f"{errors} model errors in a row; the last one: {error}")
        await self._sleep(self.backoff_s * 4 ** (errors - 1))
        state = state.with_metadata(_MODEL_ERRORS, errors)
        return state.request_continuation(self.name, rule, f"model error {errors} of {self.retries} allowed: {error}")

    async def after_inference(self, state: AgentState) -> AgentState:
        return state.with_metadata(_MODEL_ERRORS, 0) if state.metadata.get(_MODEL_ERRORS) else state


def flow(
    *, retries: int = 2, backoff_s: float = 0.5, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Capability:
    """Return what an agent needs to go from step to step."""
    policy = ErrorPolicy(retries=retries, backoff_s=backoff_s, sleep=sleep)
    return Capability("flow", hooks=(ToolCallPresence(), FinishReason(), policy))
