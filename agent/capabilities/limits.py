"""The limits of a run. Each stops the run before the next step and names itself and the numbers.

They are mandatory. Two also apply within a step: tool calls past the limit are blocked, and when the time is over the
model or the tools in progress are cancelled. All but the time count for the run and its subagents together.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent.hooks.hook import Hook
from agent.state import AgentState
from agent.tools.runner import OUT_OF_TIME
from agent.tools.tool import Capability

# With less time left no step starts: timers may be early by their resolution, and sums of floats are not exact.
_LEAST_S = 0.001
_LAST_CALL = "limits.last_call"  # {"digest", "count"}: the last tool call and how often it was made in a row
_NOTED_CALLS = 3
_MAX_SECONDS = "max_seconds"
# What each rule says when it stops a run.
_SAID = {
    _MAX_SECONDS: "the run worked for {used:.1f} s, the limit is {limit:g} s",
    "max_steps": "{used} steps were taken, the limit is {limit}",
    "max_output_tokens": "{used} output tokens were used, the limit is {limit}",
    "max_tool_calls": "{used} tool calls were made, the limit is {limit}",
    "max_cost_usd": "the model has cost {used:.6g} USD, the limit is {limit:g} USD",
    "max_forced_continuations": "hooks asked for another step {used} times after an answer, the cap is {limit}",
}


@dataclass(eq=False)
class Limit(Hook):
    """Stops the run before a step once no more than `margin` is left of the limit."""

    name: str = field()  # no default, unlike that of a hook
    rule: str
    limit: float
    used: Callable[[AgentState], float]
    margin: float = 0
    mandatory = True

    async def before_step(self, state: AgentState) -> AgentState:
        used = self.used(state)
        return state.forbid_continuation(self.name, self.rule, self.reason(used)) if self.reached(used) else state

    def reached(self, used: float) -> bool:
        return self.limit - used <= self.margin

    def reason(self, used: float) -> str:
        return _SAID[self.rule].format(used=used, limit=self.limit)


class ToolCallLimit(Limit):
    """Counts blocked and failed calls too, and blocks the calls of a response past the limit."""

    async def before_tool_use(self, state: AgentState) -> AgentState:
        made = self.used(state) + (state.current.tool_index or 0)  # `spent` does not count the step's own calls yet
        return state.block(self.name, self.rule, self.reason(made)) if self.reached(made) else state


def time_left_s(hooks: Iterable[Hook], state: AgentState) -> float:
    """Return what is left of the run's time at the start of a step; infinite without a limit."""
    limits_s = (hook.limit for hook in hooks if isinstance(hook, Limit) and hook.rule == _MAX_SECONDS)
    return min(limits_s, default=math.inf) - state.active_s


@dataclass(eq=False)
class RepeatedCalls(Hook):
    """Stops when the model makes the same tool call `limit` times in a row, with the same result each time.

    The same call is the same tool with the same final arguments. From the third call on the result warns the model. A
    tool that waits or polls returns another result once something has happened, which resets the count.
    """

    limit: int
    name = "repeated_calls"
    mandatory = True
    priority = -1000  # further in than hooks that rewrite results: the tool's own result counts

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.result is None or tool.result == OUT_OF_TIME:  # not the tool's own result
            return state
        call, result = tool.call, tool.result
        # Each evicted result is in another file; equal bytes make it the same result.
        content = result.evicted.sha256.encode() if result.evicted is not None else result.content
        asked = [call.name, tool.judged.digest, call.raw_arguments if call.arguments is None else ""]
        outcome = json.dumps([asked, result.outcome, result.exit_code, result.is_error])
        digest = hashlib.sha256(outcome.encode() + b"\0" + content).hexdigest()
        count = 1
        match state.notes.get(_LAST_CALL):
            case {"digest": str(known), "count": int(before)} if known == digest:
                count = before + 1
        state = state.with_note(_LAST_CALL, {"digest": digest, "count": count})
        if count >= _NOTED_CALLS:
            note = (
                f"[{count} times in a row this call had these arguments and this result. Do something else: "
                f"after {self.limit} times the run is stopped.]"
            )
            state = state.with_result(result.noted(note))
        if count < self.limit:
            return state
        reason = f"{call.name} was called {count} times in a row with the same arguments and the same result"
        return state.forbid_continuation(self.name, "max_repeated_calls", f"{reason}, the limit is {self.limit}")


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
    """Return all limits of a run; without `cost_usd` its cost is not limited, and a model without prices costs nothing.

    Time between two processes, or waiting for an approval, is no time of work. The loop also ends what a step is doing
    when the time is over.
    """
    hooks: list[Hook] = [
        # First: a step that it ended may be the last one too.
        Limit("execution_time_limit", _MAX_SECONDS, execution_time_s, lambda run: run.active_s, _LEAST_S),
        Limit("steps_limit", "max_steps", steps, lambda run: run.spent.steps),
        Limit("token_usage_limit", "max_output_tokens", output_tokens, lambda run: run.spent.usage.output_tokens),
        ToolCallLimit("tool_call_limit", "max_tool_calls", tool_calls, lambda run: run.spent.tool_calls),
    ]
    if cost_usd is not None:
        hooks.append(Limit("cost_limit", "max_cost_usd", cost_usd, lambda run: run.spent.usage.cost_usd))
    # As many continuations as the cap are allowed, so it is reached with one more.
    forced = ("forced_continuations_cap", "max_forced_continuations", forced_continuations)
    hooks += [RepeatedCalls(repeated_calls), Limit(*forced, lambda run: run.forced_continuations, -1)]
    return Capability("limits", hooks=hooks)
