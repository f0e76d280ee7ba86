"""The quota hook is mandatory, and outermost: it sees the usage that all other hooks add, and the final results.

The policy hook calls `take` last. A denied call has used its place in the minute and nothing else; a call that a quota
refuses is blocked, and journaled like one that the policy blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution
from agent.tool_call import Slot
from gateway.errors import QuotaExceeded
from gateway.policy.decision import Decision, RuleLimit
from gateway.policy.document import QuotasSection
from gateway.tenancy.quotas import BYTES, COST, TOKENS, CallQuota, Quotas, micro_usd
from gateway.tool_calls.service_executor import EXECUTOR, ServiceExecutor

QUOTA = "quota"
"""The rule of a verdict with which a quota of the tenant refuses a call."""

COUNTED = "quota.counted"
"""The note with the usage of this run, or subagent, that is counted already: {"tokens", "micro_usd"}."""

# Outside all hooks that add usage, and outside the ledger that subagents share.
OUTERMOST_PRIORITY = 950_000
REFUSED = Slot[QuotaExceeded]("refused by a quota")
"""Why a quota refused the call."""
_TAKEN = Slot[CallQuota]("taken of the quotas")
# What the rules limit of a call that is asked about, until an approval lets it pass.
_ASKED = Slot[Sequence[RuleLimit]]("limits of a call that is asked about")


@dataclass(eq=False)
class QuotaHook(Hook):
    """Enforces the quotas of one tenant; `limits` returns those in force."""

    name = "quota"
    mandatory = True
    priority = OUTERMOST_PRIORITY

    quotas: Quotas
    tenant: str
    limits: Callable[[], QuotasSection]

    # --- tool calls ---

    async def take(self, decision: Decision, tool: ToolExecution) -> tuple[str, str] | None:
        """Take what a call that was judged uses; return the rule and the reason of a refusal.

        Every call takes its place in the minute, and an allowed one what its rules limit. A call that the policy asks
        about takes the latter when it is approved and runs.
        """
        limits = self.limits()
        try:
            if decision.verdict == "allow":
                await self.quotas.take_call(self.tenant, _quota_of(tool), decision.limits, limits)
            else:
                await self.quotas.take_place(self.tenant, limits)
        except QuotaExceeded as refused:
            tool.context.set(REFUSED, refused)
            return refused.details.get("rule", QUOTA), str(refused)
        if decision.verdict == "ask":
            tool.context.set(_ASKED, decision.limits)
        return None

    async def count_moved(self, executor: ServiceExecutor) -> None:
        """Count the bytes that were streamed past a call's result."""
        limits = self.limits()
        if limits.bytes_per_day is not None and executor.moved_bytes is not None:
            await self.quotas.add(self.tenant, limits, {BYTES: executor.moved_bytes + executor.input_bytes})

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Take what an approved call uses: the policy asked about it, so `take` did not."""
        limits, quota, asked = self.limits(), _quota_of(tool), tool.context.get(_ASKED)
        of_rules = asked or ()
        if not of_rules and limits.tool_calls_per_minute is None and limits.bytes_per_day is None:
            return await next_(tool)
        if quota.taken is None:
            try:
                await self.quotas.take_call(self.tenant, quota, of_rules, limits, has_place=asked is not None)
            except QuotaExceeded as refused:
                tool.context.set(REFUSED, refused)
                rule = refused.details.get("rule", QUOTA)
                return ToolResult.error(f"Blocked by rule {rule}: {refused}. The call did not run.", outcome="blocked")
        return await next_(tool)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """Release the call's holds and count the bytes of its result."""
        tool = state.current.tool
        await self.quotas.end_call(_quota_of(tool))
        limits = self.limits()
        executor = tool.context.get(EXECUTOR)
        # count_moved() counts what a service executor streams.
        streams = executor is not None and executor.moved_bytes is not None
        if limits.bytes_per_day is not None and tool.result is not None and not tool.blocked and not streams:
            shown_bytes = sum(one.size_bytes for one in tool.result.attachments)
            await self.quotas.add(self.tenant, limits, {BYTES: len(tool.result.content) + shown_bytes})
        return state

    def suspended(self, state: AgentState) -> None:
        """Give up what the calls of a waiting step took: they are judged again when the run continues."""
        for tool in state.current.tool_executions:
            self.quotas.give_up_call(_quota_of(tool))

    # --- tokens and money ---

    async def before_inference(self, state: AgentState) -> AgentState:
        """Stop a run whose tenant has used up its tokens or money of the day."""
        state = await self._settled(state)
        refused = await self.quotas.check_inference(self.tenant, self.limits())
        if refused is None:
            return state
        return state.forbid_continuation(self.name, f"quota_{refused.details['quota']}", str(refused))

    async def after_inference(self, state: AgentState) -> AgentState:
        return await self._settled(state)

    async def on_error(self, state: AgentState) -> AgentState:
        return await self._settled(state)

    async def execution_end(self, state: AgentState) -> AgentState:
        """Count usage after the last answer, as of a critique, and release the calls of a step that a fault ended."""
        for tool in state.current.tool_executions:
            await self.quotas.end_call(_quota_of(tool))
        return await self._settled(state)

    async def _settled(self, state: AgentState) -> AgentState:
        """Count the growth of the usage. A subagent's usage is in its own state, and its hooks count it."""
        limits = self.limits()
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
        await self.quotas.add(self.tenant, limits, {TOKENS: tokens - tokens_before, COST: spent - spent_before})
        return state.with_note(COUNTED, {"tokens": tokens, "micro_usd": spent})


def _quota_of(tool: ToolExecution) -> CallQuota:
    quota = tool.context.get(_TAKEN)
    if quota is None:
        quota = CallQuota(tool.call.id)
        tool.context.set(_TAKEN, quota)
    return quota
