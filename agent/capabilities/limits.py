"""The limits of a run. Each stops it before the next step and names itself and the numbers.

They are mandatory: no request removes them. They are looked at between steps; what one step may take is bounded by the
timeouts of the model and of each tool. Steps, tokens, tool calls and cost are those of the run and its subagents
together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from agent.capability import Capability
from agent.hook import Hook
from agent.state import AgentState, ToolExecution
from agent.tool import ToolResult

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
    """Stops after `limit` tool calls; blocked and failed ones count."""

    name = "tool_call_limit"
    mandatory = True

    def __init__(self, limit: int = 200) -> None:
        self.limit = limit

    async def before_step(self, state: AgentState) -> AgentState:
        made = state.spent.tool_calls
        if made < self.limit:
            return state
        return state.forbid_continuation(
            self.name, "max_tool_calls", f"{made} tool calls were made, the limit is {self.limit}"
        )


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
    """Stops after `limit_s` seconds of work.

    Time between two processes, or spent waiting for an approval, does not count.
    """

    name = "execution_time_limit"
    mandatory = True

    def __init__(self, limit_s: float = 300.0) -> None:
        self.limit_s = limit_s

    async def before_step(self, state: AgentState) -> AgentState:
        if state.active_s < self.limit_s:
            return state
        return state.forbid_continuation(
            self.name, "max_seconds", f"the run worked for {state.active_s:.1f} s, the limit is {self.limit_s:g} s"
        )


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
        if tool.result is None:
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
            StepsLimit(steps),
            TokenUsageLimit(output_tokens),
            ExecutionTimeLimit(execution_time_s),
            ToolCallLimit(tool_calls),
            *(() if cost_usd is None else (CostLimit(cost_usd),)),
            RepeatedCalls(repeated_calls),
            ForcedContinuationsCap(forced_continuations),
        ),
    )
