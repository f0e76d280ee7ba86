"""The limits of a run. Each stops it before the next step and names itself and the numbers.

They are mandatory: no request removes them. They are looked at between steps; what one step may take is bounded by the
timeouts of the model and of each tool.
"""

from __future__ import annotations

from agent.capability import Capability
from agent.hook import Hook
from agent.state import AgentState


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


class ExecutionTimeLimit(Hook):
    """Stops after `limit_s` seconds of work; time spent waiting for an approval does not count."""

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


def limits(
    *,
    steps: int = 25,
    output_tokens: int = 32_768,
    execution_time_s: float = 300.0,
    forced_continuations: int = 5,
) -> Capability:
    """Return all limits of a run."""
    return Capability(
        "limits",
        hooks=(
            StepsLimit(steps),
            TokenUsageLimit(output_tokens),
            ExecutionTimeLimit(execution_time_s),
            ForcedContinuationsCap(forced_continuations),
        ),
    )
