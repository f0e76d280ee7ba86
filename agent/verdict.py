"""Verdicts on a tool call: block beats ask beats proceed, and the first writer of the winning kind gives the reason."""

from __future__ import annotations

from enum import IntEnum

from agent.frozen import Text
from agent.messages import Value


class VerdictKind(IntEnum):
    """Ordered by strictness."""

    PROCEED = 0
    ASK = 1
    BLOCK = 2

    @property
    def public_name(self) -> str:
        """The word that events, audit records and clients use: allow, ask or deny."""
        return ("allow", "ask", "deny")[self]


class PolicyWord(Value):
    """What a policy says besides its verdict.

    `asked` are the parts of the call that an approver is asked about. `would_be` is the verdict that rules in shadow
    would have given, where it is another one, and `would_be_rule` the rule that gave it. `approval_id` names the
    approval whose grant let the call pass.
    """

    version: str
    asked: tuple[str, ...] = ()
    would_be: str = ""
    would_be_rule: str = ""
    approval_id: str = ""


class Verdict(Value):
    """What a hook said of a tool call; `policy` is the policy's own word, whichever hook was the strictest."""

    kind: VerdictKind
    hook: Text
    rule: Text
    reason: Text
    policy: PolicyWord | None = None

    def strictest(self, other: Verdict) -> Verdict:
        """Return the stricter of two verdicts, this one when they are equal: it was written first."""
        winner, loser = (other, self) if other.kind > self.kind else (self, other)
        return winner if winner.policy is not None or loser.policy is None else winner.judged_by(loser.policy)

    def judged_by(self, policy: PolicyWord | None) -> Verdict:
        """Return this verdict with the word of the policy that judged the call."""
        return self.with_(policy=policy)

    @property
    def policy_version(self) -> str:
        """The version of the policy that judged the call; empty where none did."""
        return self.policy.version if self.policy is not None else ""
