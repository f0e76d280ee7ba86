"""The policy as a hook: mandatory, innermost, always closed. It sees the arguments that the tool will get."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from agent.hooks.hook import Hook
from agent.state import AgentState, PolicyWord, ToolExecution
from agent.tool_call import Slot
from gateway.approvals.approver import HeldGrants
from gateway.policy.decision import INVALID_ARGUMENTS, Decision, Facts
from gateway.policy.judge import Grants, Policy

POLICY_VERSION = "policy.version"
JUDGED_BY = Slot[Policy]("judged by")
"""The version of the policy that judged the call."""
# Judging a line of this length, or arguments of this size, takes a millisecond or two.
_LONG_COMMAND_CHARS = 512
_LARGE_ARGUMENTS_BYTES = 32 * 1024


LoadGrants = Callable[[], Awaitable[HeldGrants]]
TakeLimits = Callable[[Decision, ToolExecution], Awaitable[tuple[str, str] | None]]
"""Takes what a call uses of the tenant's quotas and of the limits of the rules that let it pass.

It is given the decision and the call, and returns the rule and the reason why there is nothing left, or None. Each
call that is judged takes its place in the minute. One that is denied takes no more, and one that is asked about takes
the rest when it runs, if it does.
"""


JudgeInTurn = Callable[..., Awaitable[Decision]]
"""Calls a function with arguments, away from the event loop, and returns its decision."""


@dataclass(eq=False)
class PolicyHook(Hook):
    """Judges each tool call; the version of the policy is in the run's notes as `policy.version`.

    `policy` may be what gives the one that is in force at each call. `grants` are read where the policy asks, and only
    there: they can turn an ask into an allow and nothing else. `work` judges long command lines and large arguments.
    """

    name = "policy"
    mandatory = True
    innermost = True

    policy: Policy | Callable[[], Policy]
    facts: Facts | None = None
    grants: LoadGrants | None = None
    take_limits: TakeLimits | None = None
    work: JudgeInTurn | None = None

    async def before_tool_use(self, state: AgentState) -> AgentState:
        """Block what the policy denies, ask where it asks; say which rule lets the rest pass."""
        policy = self.policy if isinstance(self.policy, Policy) else self.policy()
        if state.notes.get(POLICY_VERSION) != policy.version:
            state = state.with_note(POLICY_VERSION, policy.version)
        tool = state.current.tool
        tool.context.set(JUDGED_BY, policy)
        call = tool.call
        if call.arguments is None:
            reason = f"{call.name} was not judged: its arguments {call.problem or 'are not a JSON object'}"
            unfit = Decision("deny", INVALID_ARGUMENTS, reason, policy.version)
            return await self._said(state, unfit, PolicyWord(version=policy.version))
        decision = await self._judged(policy, tool)
        approval_id = ""
        if decision.verdict == "ask" and self.grants is not None:
            granted = await self.grants()
            decision = await self._judged(policy, tool, granted.grants)
            approval_id = granted.approval_of(decision.trace) if decision.verdict == "allow" else ""
        asked, (would_be, rule) = tuple(map(_shown, decision.asked)), decision.would_be or ("", "")
        word = PolicyWord(
            version=policy.version, asked=asked, would_be=would_be, would_be_rule=rule, approval_id=approval_id
        )
        return await self._said(state, decision, word)

    async def _judged(self, policy: Policy, execution: ToolExecution, grants: Grants | None = None) -> Decision:
        """Judge a call; one that takes long in a turn of its tenant, for the event loop is everybody's."""
        tool, arguments = execution.call.name, execution.call.arguments or {}
        command = arguments.get("command")
        long = isinstance(command, str) and len(command) > _LONG_COMMAND_CHARS
        if self.work is not None and (long or len(execution.judged.canonical) > _LARGE_ARGUMENTS_BYTES):
            return await self.work(policy.judge, tool, arguments, self.facts, grants)
        return policy.judge(tool, arguments, self.facts, grants)

    async def _said(self, state: AgentState, decision: Decision, word: PolicyWord) -> AgentState:
        """Return the state with the verdict of a decision; taking comes first, and can be refused."""
        tool = state.current.tool
        if self.take_limits is not None:
            # What an outer hook has blocked will not run, whatever the policy says of it.
            judged = replace(decision, verdict="deny") if tool.blocked else decision
            refused = await self.take_limits(judged, tool)
            if refused is not None:
                return state.block(self.name, refused[0], _shown(refused[1]), word)
        say = {"allow": state.proceed, "ask": state.ask, "deny": state.block}[decision.verdict]
        return say(self.name, decision.rule, _shown(decision.reason), word)


def _shown(text: str) -> str:
    """Return a text that fits the journal and the wire: half of a surrogate pair, which JSON can hold, does not."""
    return text.encode("utf-8", "backslashreplace").decode()
