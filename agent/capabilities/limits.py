"""The limits of a run. Each stops it before the next step and names itself and the numbers.

They are mandatory: no request removes them. Two hold within a step too: tool calls past the limit are blocked, and what
the model or a tool is at when the time is over is cancelled. For the others a step is let come to its end, which the
timeouts of the model and of each tool bound. Steps, tokens, tool calls and cost are those of the run and its subagents
together.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Self

from agent.cancellation import Cancellation
from agent.capabilities.capability import Capability
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution
from agent.tools.tool import ToolContext, ToolExecutor

OUT_OF_TIME = ToolResult.error("the call was cancelled: the run's time is over", outcome="cancelled")

# With less than this left no step is begun: timers may be early by their resolution, and sums of floats are not exact.
_LEAST_S = 0.001
_LAST_CALL = "limits.last_call"  # {"digest", "count"}: the last tool call and how often it was made in a row
_NOTED_CALLS = 3


class StepsLimit(Hook):
    """Stops after `limit` steps."""

    name = "steps_limit"
    mandatory = True

    def __init__(self, limit: int = 25) -> None:
        self.limit = limit

    async def before_step(self, state: AgentState) -> AgentState:
        if state.spent.steps < self.limit:
            return state
        return state.forbid_continuation(
            self.name, "max_steps", f"{state.spent.steps} steps were taken, the limit is {self.limit}"
        )


class TokenUsageLimit(Hook):
    """Stops after `limit_tokens` output tokens."""

    name = "token_usage_limit"
    mandatory = True

    def __init__(self, limit_tokens: int = 32_768) -> None:
        self.limit_tokens = limit_tokens

    async def before_step(self, state: AgentState) -> AgentState:
        used = state.spent.usage.output_tokens
        if used < self.limit_tokens:
            return state
        return state.forbid_continuation(
            self.name, "max_output_tokens", f"{used} output tokens were used, the limit is {self.limit_tokens}"
        )


class ToolCallLimit(Hook):
    """Stops after `limit` tool calls; blocked and failed ones count. What one response asks past it is blocked."""

    name = "tool_call_limit"
    mandatory = True

    def __init__(self, limit: int = 200) -> None:
        self.limit = limit

    async def before_step(self, state: AgentState) -> AgentState:
        made = state.spent.tool_calls
        return state if made < self.limit else state.forbid_continuation(self.name, "max_tool_calls", self._said(made))

    async def before_tool_use(self, state: AgentState) -> AgentState:
        made = state.spent.tool_calls + (state.current.tool_index or 0)  # what the step has begun is not in spent yet
        return state if made < self.limit else state.block(self.name, "max_tool_calls", self._said(made))

    def _said(self, made: int) -> str:
        return f"{made} tool calls were made, the limit is {self.limit}"


class CostLimit(Hook):
    """Stops when the tokens have cost `limit_usd`. A model without prices costs nothing: give each model its prices."""

    name = "cost_limit"
    mandatory = True

    def __init__(self, limit_usd: float) -> None:
        self.limit_usd = limit_usd

    async def before_step(self, state: AgentState) -> AgentState:
        cost_usd = state.spent.usage.cost_usd
        if cost_usd < self.limit_usd:
            return state
        return state.forbid_continuation(
            self.name, "max_cost_usd", f"the model has cost {cost_usd:.6g} USD, the limit is {self.limit_usd:g} USD"
        )


class ExecutionTimeLimit(Hook):
    """Stops after `limit_s` seconds of work, and the loop ends what a step is at when they are over.

    Time between two processes, or spent waiting for an approval, does not count.
    """

    name = "execution_time_limit"
    mandatory = True

    def __init__(self, limit_s: float = 300.0) -> None:
        self.limit_s = limit_s

    async def before_step(self, state: AgentState) -> AgentState:
        if self.left_s(state) >= _LEAST_S:
            return state
        return state.forbid_continuation(
            self.name, "max_seconds", f"the run worked for {state.active_s:.1f} s, the limit is {self.limit_s:g} s"
        )

    def left_s(self, state: AgentState) -> float:
        """Return what is left of the time at the beginning of a step."""
        return self.limit_s - state.active_s


def time_left_s(hooks: Iterable[Hook], state: AgentState) -> float:
    """Return what these hooks leave of the run's time at the beginning of a step; without a limit it is infinite."""
    return min((hook.left_s(state) for hook in hooks if isinstance(hook, ExecutionTimeLimit)), default=math.inf)


class TimeLeft:
    """Cancels what its block waits for when the time is over: the block is left without an error, `over` says why.

    A run that is cancelled is left to its end: the time that is over meanwhile does not cancel it a second time, and
    whoever cancels it when the time is over is heeded.
    """

    def __init__(self, left_s: float) -> None:
        self.over = False
        self._left_s = left_s

    async def __aenter__(self) -> Self:
        self._cancellation = await Cancellation.watch()
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._left_s), self._end) if self._left_s < math.inf else None
        return self

    def _end(self) -> None:
        if self._task is not None and not self._cancellation.asked:
            self.over = True
            self._task.cancel()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if not self.over or self._task is None:
            return False
        self._task.uncancel()
        # Also an error: it may be how a driver answers a cancellation, and nothing is to be done about it any more.
        return isinstance(error, Exception | asyncio.CancelledError) and not self._cancellation.asked


class ToolsInTime:
    """A ToolExecutor whose calls end when the run's time does. `left_s` says how much there is."""

    def __init__(self, inner: ToolExecutor, left_s: Callable[[], float]) -> None:
        self._inner = inner
        self._left_s = left_s

    def specs(self) -> Sequence[ToolSpec]:
        return self._inner.specs()

    def check(self, call: ToolCall) -> ToolResult | None:
        return self._inner.check(call)

    def normalised(self, call: ToolCall) -> ToolCall:
        return self._inner.normalised(call)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        left_s = self._left_s()
        if left_s > 0:  # what waited for its turn may not even begin
            async with TimeLeft(left_s):
                return await self._inner.execute(call, context)
        return OUT_OF_TIME


class ForcedContinuationsCap(Hook):
    """Stops when hooks asked for more than `cap` steps that the model itself did not ask for."""

    name = "forced_continuations_cap"
    mandatory = True

    def __init__(self, cap: int = 5) -> None:
        self.cap = cap

    async def before_step(self, state: AgentState) -> AgentState:
        if state.forced_continuations <= self.cap:
            return state
        return state.forbid_continuation(
            self.name,
            "max_forced_continuations",
            f"hooks asked for another step {state.forced_continuations} times after an answer, the cap is {self.cap}",
        )


class RepeatedCalls(Hook):
    """Stops when the model makes the same tool call `limit` times in a row, with the same result each time.

    The same call is the same tool with the same final arguments. From the third on the result tells the model that it
    repeats itself. A tool that waits or checks gives another result when something has happened, and starts anew.
    """

    name = "repeated_calls"
    mandatory = True
    priority = -1000  # further in than hooks that rewrite results: what counts is what the tool gave

    def __init__(self, limit: int = 5) -> None:
        self.limit = limit

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.result is None or tool.result == OUT_OF_TIME:  # not the tool's own, and the run is over for it
            return state
        digest = _digest(tool, tool.result)
        last = state.notes.get(_LAST_CALL)
        same = isinstance(last, dict) and last.get("digest") == digest
        before = last.get("count") if isinstance(last, dict) and same else 0
        count = (before if isinstance(before, int) else 0) + 1
        state = state.with_note(_LAST_CALL, {"digest": digest, "count": count})
        if count >= _NOTED_CALLS:
            state = state.with_result(replace(tool.result, note=self._note(tool.result, count)))
        if count < self.limit:
            return state
        return state.forbid_continuation(
            self.name,
            "max_repeated_calls",
            f"{tool.call.name} was called {count} times in a row with the same arguments and the same result, "
            f"the limit is {self.limit}",
        )

    def _note(self, result: ToolResult, count: int) -> str:
        said = (
            f"[{count} times in a row this call had these arguments and this result. Do something else: "
            f"after {self.limit} times the run is stopped.]"
        )
        return f"{result.note}\n{said}" if result.note else said


def _digest(tool: ToolExecution, result: ToolResult) -> str:
    # What was evicted lies in a file of its own each time, and is the same when its bytes are.
    content = result.evicted.sha256.encode() if result.evicted is not None else result.content
    call = tool.call
    asked = [call.name, call.arguments, call.raw_arguments if call.arguments is None else ""]
    told = json.dumps([asked, result.outcome, result.exit_code, result.is_error], sort_keys=True, default=repr)
    return hashlib.sha256(told.encode() + b"\0" + content).hexdigest()


def limits(
    *,
    steps: int = 25,
    output_tokens: int = 32_768,
    execution_time_s: float = 300.0,
    tool_calls: int = 200,
    cost_usd: float | None = None,
    repeated_calls: int = 5,
    forced_continuations: int = 5,
) -> Capability:
    """Return all limits of a run; without `cost_usd` its cost is not limited."""
    return Capability(
        "limits",
        hooks=(
            ExecutionTimeLimit(execution_time_s),  # the first to speak: a step that it ended may be the last one too
            StepsLimit(steps),
            TokenUsageLimit(output_tokens),
            ToolCallLimit(tool_calls),
            *(() if cost_usd is None else (CostLimit(cost_usd),)),
            RepeatedCalls(repeated_calls),
            ForcedContinuationsCap(forced_continuations),
        ),
    )
