"""Continuation: Forbid beats Request beats AllowStop; the first writer of the winning kind gives the reason."""

from __future__ import annotations

from enum import IntEnum

from agent.frozen import Text
from agent.messages import Value


class ContinuationDecision(IntEnum):
    """Ordered by precedence."""

    ALLOW_STOP = 0
    REQUEST = 1
    FORBID = 2


class ContinuationOutcome(Value):
    """What a hook wrote: which rule of which hook, and why, with the numbers."""

    decision: ContinuationDecision
    hook: Text
    rule: Text
    reason: Text

    def resolved_with(self, later: ContinuationOutcome) -> ContinuationOutcome:
        """Return the winner of this outcome and one written after it."""
        return later if later.decision > self.decision else self
