"""What hooks decide: a verdict on each tool call, and whether the run takes another step.

Block beats ask, ask beats proceed. Forbid beats request, request beats allow. Of equal decisions the first one stands,
with its reason.
"""

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
    """What a policy reports besides its verdict.

    `asked` are the parts of the call that an approver is asked about. `would_be` is the verdict of the rules in shadow
    mode where it differs. `approval_id` names the approval whose grant allowed the call.
    """

    version: str
    asked: tuple[str, ...] = ()
    would_be: str = ""
    would_be_rule: str = ""
    approval_id: str = ""


class Verdict(Value):
    """A hook's verdict on a tool call; `policy` is what the policy reported, whichever hook was the strictest."""

    kind: VerdictKind
    hook: Text
    rule: Text
    reason: Text
    policy: PolicyWord | None = None

    def strictest(self, other: Verdict) -> Verdict:
        """Return the stricter of two verdicts, this earlier one when they are equal."""
        winner, loser = (other, self) if other.kind > self.kind else (self, other)
        return winner if winner.policy is not None or loser.policy is None else winner.with_(policy=loser.policy)

    @property
    def policy_version(self) -> str:
        """The version of the policy that judged the call; empty if none did."""
        return self.policy.version if self.policy is not None else ""


class ContinuationDecision(IntEnum):
    """Ordered by precedence."""

    ALLOW_STOP = 0
    REQUEST = 1
    FORBID = 2


class ContinuationOutcome(Value):
    """A hook's decision about another step, with the rule and the reason."""

    decision: ContinuationDecision
    hook: Text
    rule: Text
    reason: Text

    def resolved_with(self, later: ContinuationOutcome) -> ContinuationOutcome:
        return later if later.decision > self.decision else self
