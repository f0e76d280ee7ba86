"""Replays recorded calls against a candidate policy to find verdicts that would change.

Each call is judged with its original arguments and as of its original time. Rates, quotas and approvals are not
replayed: a call that waited for an approval counts as asked, whatever the answer was.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent.messages import ToolCall
from agent.tool_call import JudgedCall
from gateway.policy import Policy
from gateway.policy.decision import Facts
from gateway.policy_versions.difference import Tally, Verdict
from gateway.storage.call_journal import RecordedCall

CUT = "its stored arguments are truncated, or were not a JSON object"
NO_VERDICT = "it has no verdict: it was in progress when its gateway stopped, or still is"
OTHERS = "something other than the policy stopped it"
# Rules of verdicts that do not come from the policy.
_NOT_THE_POLICY = frozenset({"quota", "redaction"})
_SAMPLE_CHARS = 2000


@dataclass
class Replayed:
    """The result. `skipped` counts the calls that were not judged, by reason.

    `shadow` has the further changes if the candidate's rules in shadow mode were enforced.
    """

    tally: Tally = field(default_factory=Tally)
    shadow: Tally = field(default_factory=Tally)
    skipped: Counter[str] = field(default_factory=Counter)


async def replay(
    candidate: Policy, calls: AsyncIterator[RecordedCall], on_call: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Judge recorded calls; `on_call` receives the number of calls so far."""
    replayed = Replayed()
    count = 0
    async for call in calls:
        count += 1
        _judge(candidate, call, replayed)
        on_call(count)
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
    """Return the judged arguments; None if the journal does not have all of them."""
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    judged = JudgedCall.of(ToolCall(id=call.id, name=call.tool, arguments=parsed))
    return parsed if judged.digest == call.arguments_digest else None
