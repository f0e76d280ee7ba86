"""Quotas as a hook: mandatory, and outermost, so that it sees the usage that all others add and the final results.

The taking for a tool call is the policy hook's last act (`take`): what is denied has used its place in the minute and
nothing else, and what is refused here is a block like the policy's own, so it is journaled as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from agent.call_context import Slot
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution
from gateway.errors import QuotaExceeded
from gateway.policy.decision import Decision, RuleLimit
from gateway.policy.document import QuotasSection
from gateway.tenancy.quotas import CallQuota, Quotas, micro_usd
from gateway.tool_calls.call_slots import EXECUTOR, REFUSED

QUOTA = "quota"
"""The rule that is named where a quota of the tenant refuses a call."""

COUNTED = "quota.counted"
"""The note that says what of the usage of this run, or of this subagent, is counted: {"tokens", "micro_usd"}."""

# Outside of all that adds to the usage, and of the ledger that subagents share.
OUTERMOST_PRIORITY = 950_000
_TAKEN = Slot[CallQuota]("taken of the quotas")
# What the rules limit of a call that is asked about, until an approval lets it pass.
_ASKED = Slot[Sequence[RuleLimit]]("limits of a call that is asked about")


@runtime_checkable
class MovesBytes(Protocol):
    """What stands in for tools and moves bytes past their results: `moved_bytes` of them by now."""

    moved_bytes: int


class QuotaHook(Hook):
    """Enforces the quotas of one tenant."""

    name = "quota"
    mandatory = True
    priority = OUTERMOST_PRIORITY

    def __init__(self, quotas: Quotas, tenant: str, limits: Callable[[], QuotasSection]) -> None:
        """`limits` returns the quotas in force."""
        self._quotas = quotas
        self._tenant = tenant
        self._limits = limits

    # --- tool calls ---

    async def take(self, decision: Decision, tool: ToolExecution) -> tuple[str, str] | None:
        """Take what a call that was judged uses; return the rule and the reason of a refusal.

        It is its place in the minute, and for one that the policy allows what its rules limit. What one that is asked
        about would take of that is remembered until somebody's approval lets it pass, or it is over.
        """
        limits = self._limits()
        try:
            if decision.verdict == "allow":
                await self._quotas.take_call(self._tenant, _quota_of(tool), decision.limits, limits)
            else:
                await self._quotas.take_place(self._tenant, limits)
        except QuotaExceeded as refused:
            tool.context.set(REFUSED, refused)
            return refused.details.get("rule", QUOTA), str(refused)
        if decision.verdict == "ask":
            tool.context.set(_ASKED, decision.limits)
        return None

    async def count_moved(self, tools: object) -> None:
        """Count the bytes that a service moved past a call's result."""
        limits = self._limits()
        if limits.bytes_per_day is not None and isinstance(tools, MovesBytes):
            await self._quotas.add_bytes(self._tenant, limits, tools.moved_bytes)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Take for a call that runs because somebody approved it: the policy asked, and did not let it pass itself."""
        limits, quota, asked = self._limits(), _quota_of(tool), tool.context.get(_ASKED)
        of_rules = asked or ()
        if not of_rules and limits.tool_calls_per_minute is None and limits.bytes_per_day is None:
            return await next_(tool)
        if quota.taken is None:
            try:
                await self._quotas.take_call(self._tenant, quota, of_rules, limits, has_place=asked is not None)
            except QuotaExceeded as refused:
                tool.context.set(REFUSED, refused)
                rule = refused.details.get("rule", QUOTA)
                return ToolResult.error(f"Blocked by rule {rule}: {refused}. The call did not run.", outcome="blocked")
        return await next_(tool)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Release what the call held and count what it brought."""
        tool = state.current.tool
        await self._quotas.end_call(_quota_of(tool))
        limits = self._limits()
        # What stands in for the tools may move bytes past the result, which only says how many: count_moved().
        counts = not tool.blocked and not isinstance(tool.context.get(EXECUTOR), MovesBytes)
        if limits.bytes_per_day is not None and tool.result is not None and counts:
            await self._quotas.add_bytes(self._tenant, limits, len(tool.result.content))
        return state

    def suspended(self, state: AgentState) -> None:
        """Give up what the calls of a step took that waits: they are judged again, and take it again."""
        for tool in state.current.tool_executions:
            self._quotas.give_up_call(_quota_of(tool))

    # --- tokens and money ---

    async def before_inference(self, state: AgentState) -> AgentState:
        """End the run before it asks a model that the tenant may not ask any more today."""
        state = await self._settled(state)
        refused = await self._quotas.check_inference(self._tenant, self._limits())
        if refused is None:
            return state
        return state.forbid_continuation(self.name, f"quota_{refused.details['quota']}", str(refused))

    async def after_inference(self, state: AgentState) -> AgentState:
        """Count what the answer has used."""
        return await self._settled(state)

    async def on_error(self, state: AgentState) -> AgentState:
        """Count what attempts that failed have used."""
        return await self._settled(state)

    async def execution_end(self, state: AgentState) -> AgentState:
        """Count what came after the last answer: an inference that was cancelled, a critique."""
        return await self._settled(state)

    async def _settled(self, state: AgentState) -> AgentState:
        """Count what the usage has grown by: a subagent's is in its own state, and its hooks count it."""
        limits = self._limits()
        if limits.tokens_per_day is None and limits.cost_usd_per_day is None:
            return state
        usage = state.usage
        tokens, spent = usage.input_tokens + usage.output_tokens, micro_usd(usage.cost_usd)
        noted = state.notes.get(COUNTED)
        counted = noted if isinstance(noted, dict) else {}
        tokens_before, spent_before = counted.get("tokens", 0), counted.get("micro_usd", 0)
        if not isinstance(tokens_before, int) or not isinstance(spent_before, int):
            raise TypeError(f"{COUNTED} holds no numbers")
        if (tokens, spent) == (tokens_before, spent_before):
            return state
        await self._quotas.add_inference(
            self._tenant, limits, tokens=tokens - tokens_before, micro_usd=spent - spent_before
        )
        return state.with_note(COUNTED, {"tokens": tokens, "micro_usd": spent})


def _quota_of(tool: ToolExecution) -> CallQuota:
    quota = tool.context.get(_TAKEN)
    if quota is None:
        quota = CallQuota(tool.call.id)
        tool.context.set(_TAKEN, quota)
    return quota
