"""The limits of a run. Each stops the run before the next step and names itself and the numbers.

They are mandatory: no request overrides them. Two also apply within a step: tool calls past the limit are blocked, and
when the time is over the model or the tools in progress are cancelled. Otherwise the current step finishes, bounded by
the timeouts of the model and of each tool. Steps, tokens, tool calls and cost count for the run and its subagents
together.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from agent.cancellation import Cancellation
from agent.capabilities.capability import Capability
from agent.hooks.hook import Hook
from agent.judged_call import JudgedCall
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution
from agent.tools.tool import ToolContext, ToolExecutor

OUT_OF_TIME = ToolResult.error("the call was cancelled: the run's time is over", outcome="cancelled")

# With less time left no step starts: timers may be early by their resolution, and sums of floats are not exact.
_LEAST_S = 0.001
_LAST_CALL = "limits.last_call"  # {"digest", "count"}: the last tool call and how often it was made in a row
_NOTED_CALLS = 3


@dataclass(eq=False)
class _Limit(Hook):
    """Stops the run before a step once it has used up `limit`; `said` gives the numbers."""

    limit: float
    mandatory = True
    rule = ""
    said = ""

    def used(self, state: AgentState) -> float:
        raise NotImplementedError

    def reached(self, used: float) -> bool:
        return used >= self.limit

    async def before_step(self, state: AgentState) -> AgentState:
        used = self.used(state)
        return state.forbid_continuation(self.name, self.rule, self._reason(used)) if self.reached(used) else state

    def _reason(self, used: float) -> str:
        return self.said.format(used=used, limit=self.limit)


@dataclass(eq=False)
class StepsLimit(_Limit):
    """Stops after `limit` steps."""

    limit: float = 25
    name = "steps_limit"
    rule = "max_steps"
    said = "{used} steps were taken, the limit is {limit}"

    def used(self, state: AgentState) -> float:
        return state.spent.steps


@dataclass(eq=False)
class TokenUsageLimit(_Limit):
    """Stops after `limit` output tokens."""

    limit: float = 32_768
    name = "token_usage_limit"
    rule = "max_output_tokens"
    said = "{used} output tokens were used, the limit is {limit}"

    def used(self, state: AgentState) -> float:
        return state.spent.usage.output_tokens


@dataclass(eq=False)
class ToolCallLimit(_Limit):
    """Stops after `limit` tool calls, blocked and failed ones included, and blocks the calls of a response past it."""

    limit: float = 200
    name = "tool_call_limit"
    rule = "max_tool_calls"
    said = "{used} tool calls were made, the limit is {limit}"

    def used(self, state: AgentState) -> float:
        return state.spent.tool_calls

    async def before_tool_use(self, state: AgentState) -> AgentState:
        made = self.used(state) + (state.current.tool_index or 0)  # `spent` does not count the step's own calls yet
        return state.block(self.name, self.rule, self._reason(made)) if self.reached(made) else state


@dataclass(eq=False)
class CostLimit(_Limit):
    """Stops when the tokens have cost `limit` US dollars. A model without prices costs nothing."""

    name = "cost_limit"
    rule = "max_cost_usd"
    said = "the model has cost {used:.6g} USD, the limit is {limit:g} USD"

    def used(self, state: AgentState) -> float:
        return state.spent.usage.cost_usd


@dataclass(eq=False)
class ExecutionTimeLimit(_Limit):
    """Stops after `limit` seconds of work; the loop also ends what a step is doing when they are over.

    Time between two processes, or waiting for an approval, does not count.
    """

    limit: float = 300.0
    name = "execution_time_limit"
    rule = "max_seconds"
    said = "the run worked for {used:.1f} s, the limit is {limit:g} s"

    def used(self, state: AgentState) -> float:
        return state.active_s

    def reached(self, used: float) -> bool:
        return self.limit - used < _LEAST_S


@dataclass(eq=False)
class ForcedContinuationsCap(_Limit):
    """Stops when hooks requested more than `limit` steps after an answer."""

    limit: float = 5
    name = "forced_continuations_cap"
    rule = "max_forced_continuations"
    said = "hooks asked for another step {used} times after an answer, the cap is {limit}"

    def used(self, state: AgentState) -> float:
        return state.forced_continuations

    def reached(self, used: float) -> bool:
        return used > self.limit


def time_left_s(hooks: Iterable[Hook], state: AgentState) -> float:
    """Return what is left of the run's time at the start of a step; infinite without a limit."""
    limits_s = (hook.limit for hook in hooks if isinstance(hook, ExecutionTimeLimit))
    return min(limits_s, default=math.inf) - state.active_s


class TimeLeft:
    """Cancels what its block waits for when the time is over: the block ends without an error and `over` is set.

    A run that is being cancelled is not cancelled again when its time ends, and a cancellation that comes after the
    time is over still counts.
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
        # Also an error: a driver may answer a cancellation with one, and the run is over anyway.
        return isinstance(error, Exception | asyncio.CancelledError) and not self._cancellation.asked


@dataclass(frozen=True)
class ToolsInTime:
    """A ToolExecutor whose calls end with the run's time; `left_s` returns how much is left."""

    inner: ToolExecutor
    left_s: Callable[[], float]

    def specs(self) -> Sequence[ToolSpec]:
        return self.inner.specs()

    def prepare(self, call: ToolCall) -> JudgedCall:
        return self.inner.prepare(call)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        left_s = self.left_s()
        if left_s > 0:  # a call that waited for its turn may have none left
            async with TimeLeft(left_s):
                return await self.inner.execute(call, context)
        return OUT_OF_TIME


@dataclass(eq=False)
class RepeatedCalls(Hook):
    """Stops when the model makes the same tool call `limit` times in a row, with the same result each time.

    The same call is the same tool with the same final arguments. From the third call on the result warns the model. A
    tool that waits or polls returns another result once something has happened, which resets the count.
    """

    limit: int = 5
    name = "repeated_calls"
    mandatory = True
    priority = -1000  # further in than hooks that rewrite results: the tool's own result counts

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.result is None or tool.result == OUT_OF_TIME:  # not the tool's own result
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
    # Each evicted result is in another file; equal bytes make it the same result.
    content = result.evicted.sha256.encode() if result.evicted is not None else result.content
    call = tool.call
    asked = [call.name, tool.judged.digest, call.raw_arguments if call.arguments is None else ""]
    outcome = json.dumps([asked, result.outcome, result.exit_code, result.is_error])
    return hashlib.sha256(outcome.encode() + b"\0" + content).hexdigest()


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
            ExecutionTimeLimit(execution_time_s),  # first: a step that it ended may be the last one too
            StepsLimit(steps),
            TokenUsageLimit(output_tokens),
            ToolCallLimit(tool_calls),
            *(() if cost_usd is None else (CostLimit(cost_usd),)),
            RepeatedCalls(repeated_calls),
            ForcedContinuationsCap(forced_continuations),
        ),
    )
