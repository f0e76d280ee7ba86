"""What the policy says of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["allow", "deny"]

DEFAULT_DENY = "default-deny"
OPAQUE = "opaque"
INVALID_ARGUMENTS = "invalid-arguments"


@dataclass(frozen=True)
class Match:
    """A rule that matched a part of the call: the path, one simple command, or one redirect."""

    part: str
    rule: str
    effect: Effect


@dataclass(frozen=True)
class Decision:
    """A verdict and what led to it.

    `rule` is the id of the deciding rule: the first in the file among those with the strictest effect, else
    default-deny, opaque or invalid-arguments. `reason` is written for the model. `trace` lists every rule that matched.
    """

    verdict: Effect
    rule: str
    reason: str
    policy_version: str
    trace: tuple[Match, ...] = ()
