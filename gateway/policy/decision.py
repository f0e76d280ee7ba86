"""What the policy says of one call, the facts that it was given, and how surely a rule is about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Literal

Effect = Literal["allow", "ask", "deny"]
Layer = Literal["operator", "tenant"]

STRICTNESS: dict[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}

DEFAULT_DENY = "default-deny"
OPAQUE = "opaque"
INVALID_ARGUMENTS = "invalid-arguments"
TOO_COMPLEX = "too-complex"


class Certainty(IntEnum):
    """How surely something matches what is not always known whole before it runs.

    Of several that must all match the least counts, of alternatives the greatest.
    """

    NO = 0
    PERHAPS = 1
    YES = 2

    @property
    def opposite(self) -> Certainty:
        """How surely it does not match."""
        return Certainty(2 - self)


NO, PERHAPS, YES = Certainty


@dataclass(frozen=True)
class Facts:
    """What is known of a call besides its tool and arguments. `at` is now unless a test says otherwise."""

    tenant: str = ""
    thread: str = ""
    run_id: str = ""
    agent: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class Match:
    """A rule that matched a part of the call: the path, one simple command, one redirect, one file it names, a host."""

    part: str
    rule: str
    effect: Effect
    shadow: bool = False
    layer: Layer = "tenant"


@dataclass(frozen=True)
class RuleLimit:
    """How often a rule may let a call pass: `calls` in each `per_s` seconds of the clock, `at_once` under way."""

    rule: str
    calls: int | None = None
    per_s: int | None = None
    at_once: int | None = None


@dataclass(frozen=True)
class Decision:
    """A verdict and what led to it.

    `rule` is the id of the deciding rule: the first in the file among those with the strictest effect (for allow, one
    about the command before one about a file that the command names), else default-deny, opaque, too-complex or
    invalid-arguments; rules of the operator's layer are named `operator/ID`. `reason` is written for the model. `trace`
    lists every rule that matched. `asked` are the parts an approver is asked about, `limits` what must be taken before
    the call may pass. `would_be` is the verdict and the rule if those in shadow were enforced, where it is another one.
    """

    verdict: Effect
    rule: str
    reason: str
    policy_version: str = ""
    trace: tuple[Match, ...] = ()
    asked: tuple[str, ...] = ()
    limits: tuple[RuleLimit, ...] = ()
    would_be: tuple[Effect, str] | None = None
