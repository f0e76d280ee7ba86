"""Verdicts on a tool call: block beats ask beats proceed, and the first writer of the winning kind gives the reason."""

from __future__ import annotations

from enum import IntEnum

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


class Verdict(Value):
    """What a hook said of a tool call."""

    kind: VerdictKind
    hook: str
    rule: str
    reason: str

    def strictest(self, other: Verdict) -> Verdict:
        """Return the stricter of two verdicts, this one when they are equal: it was written first."""
        return other if other.kind > self.kind else self
