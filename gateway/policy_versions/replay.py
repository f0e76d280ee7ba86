"""A candidate policy over recorded calls: what would have been another verdict.

Each call is judged with the arguments that were judged then, and as of the time it was made. Not replayed are rates,
quotas and what persons granted: a call that was asked about counts as asked, whatever the answer was.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent.messages import ToolCall
from agent.tools.runner import digestible
from gateway.policy import Policy
from gateway.policy.decision import Facts
from gateway.policy.difference import Tally, Verdict
from gateway.storage.recorded_calls import RecordedCall

CUT = "its arguments are longer than what is kept of them, or were no JSON object"
NO_VERDICT = "it has no verdict: it was under way when its gateway stopped, or is"
OTHERS = "something else than the policy stopped it"
# Rules in whose name something else than the judge of the policy speaks.
_NOT_THE_POLICY = frozenset({"quota", "redaction"})
_SAMPLE_CHARS = 2000


@dataclass
class Replayed:
    """What came of it. `skipped` counts the calls that were not judged, by why.

    `shadow` has what would change further if the candidate's rules in shadow were enforced.
    """

    tally: Tally = field(default_factory=Tally)
    shadow: Tally = field(default_factory=Tally)
    skipped: Counter[str] = field(default_factory=Counter)


async def replay(
    candidate: Policy, calls: AsyncIterator[RecordedCall], on_call: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Judge recorded calls; `on_call` is told how many were looked at so far."""
    replayed = Replayed()
    looked_at = 0
    async for call in calls:
        looked_at += 1
        _judge(candidate, call, replayed)
        on_call(looked_at)
    return replayed


def _judge(candidate: Policy, call: RecordedCall, replayed: Replayed) -> None:
    if call.verdict not in ("allow", "ask", "deny"):
        replayed.skipped[NO_VERDICT] += 1
        return
    if call.rule in _NOT_THE_POLICY:
        replayed.skipped[OTHERS] += 1
        return
    arguments = whole_arguments(call)
    if arguments is None:
        replayed.skipped[CUT] += 1
        return
    before = Verdict("ask" if call.asked else call.verdict, call.rule)
    facts = Facts(call.tenant, call.thread, call.run_id, call.agent, datetime.fromtimestamp(call.started_us / 1e6, UTC))
    decision = candidate.judge(call.tool, arguments, facts)
    sample = f"{call.tenant} {call.tool} {call.arguments[:_SAMPLE_CHARS]}"
    after = Verdict(decision.verdict, decision.rule)
    replayed.tally.take(before, after, sample)
    replayed.shadow.take(after, Verdict(*(decision.would_be or (decision.verdict, decision.rule))), sample)


def whole_arguments(call: RecordedCall) -> dict[str, Any] | None:
    """Return the arguments that were judged, None where the journal does not hold all of them."""
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    canonical = digestible(ToolCall(id=call.id, name=call.tool, arguments=parsed))
    return parsed if hashlib.sha256(canonical.encode()).hexdigest() == call.arguments_digest else None
