"""The policy as a hook: mandatory, innermost, always closed. It sees the arguments that the tool will get."""

from __future__ import annotations

from agent.hook import Hook
from agent.state import AgentState
from gateway.policy.decision import INVALID_ARGUMENTS
from gateway.policy.judge import Policy

POLICY_VERSION = "policy.version"


class PolicyHook(Hook):
    """Judges each tool call; the version of the policy is in the run's notes as `policy.version`."""

    name = "policy"
    mandatory = True
    innermost = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def before_tool_use(self, state: AgentState) -> AgentState:
        """Block what the policy denies; say which rule lets the rest pass."""
        if state.notes.get(POLICY_VERSION) != self._policy.version:
            state = state.with_note(POLICY_VERSION, self._policy.version)
        call = state.current.tool.call
        if call.arguments is None:
            return state.block(self.name, INVALID_ARGUMENTS, f"{call.name} was not judged: no JSON object of arguments")
        decision = self._policy.judge(call.name, call.arguments)
        say = state.proceed if decision.verdict == "allow" else state.block
        # Half of a surrogate pair, which JSON can hold, fits neither the journal nor the wire.
        return say(self.name, decision.rule, decision.reason.encode("utf-8", "backslashreplace").decode())
