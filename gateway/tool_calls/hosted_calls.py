"""The tool calls of a run that is hosted here, and may continue in another process.

The journal tells a gateway that takes a run over what became of the run's calls.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agent.messages import ToolCall, ToolResult
from agent.state import PolicyWord, Verdict, VerdictKind
from agent.tools.approval import blocked_result
from agent.tools.recovery import INTERRUPTED, EarlierCall
from gateway.storage.run_writes import Claim, LeaseLost
from gateway.storage.store import Store
from gateway.support.background import retried
from gateway.tool_calls.stored_result import StoredResult

# Longer results are not kept: after a crash the model reads that the call ended and its result is lost.
_CONTENT_LIMIT_BYTES = 1024 * 1024
_KINDS = {"allow": VerdictKind.PROCEED, "ask": VerdictKind.ASK, "deny": VerdictKind.BLOCK}


class HostedCalls:
    """The claim of the gateway that hosts the run. Calls that belong to no run never call `host`."""

    def __init__(self, store: Store) -> None:
        self.claim: Claim | None = None
        self.read_only: frozenset[str] = frozenset()
        self.abandoned = False
        self._store = store
        self._lease_over: Callable[[], bool] = lambda: False

    def host(self, claim: Claim, read_only: Collection[str], lease_over: Callable[[], bool] = lambda: False) -> None:
        """Write for a run under its claim, with the calls' results until their step is kept.

        `read_only` are the tools whose interrupted calls may be made again. No call begins once `lease_over` returns
        True: a process that was stopped finds out last that its lease expired.
        """
        self.claim, self.read_only, self._lease_over = claim, frozenset(read_only), lease_over

    def abandon(self) -> None:
        """Begin no further call and write nothing more: the run continues on another gateway from what is stored."""
        self.abandoned = True

    def check(self, run_id: str | None) -> None:
        """Raise LeaseLost if another process hosts the run by now."""
        if self.abandoned or self._lease_over():
            raise LeaseLost(run_id)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the outcomes of these calls in an earlier process; calls that may be made again are left out."""
        if self.claim is None:
            return {}
        ids = [call.id for call in calls]
        # The run is claimed: a failed read must not end it.
        read = partial(self._store.take_over_calls, self.claim, ids)
        rows = await retried(read, run_id=self.claim.run_id, what="its earlier calls")
        again = {
            id_ for id_, row in rows.items() if row["read_only"] and row["state"] != "blocked" and row["result"] is None
        }
        return {id_: earlier_call(row) for id_, row in rows.items() if id_ not in again}


def result_json(result: ToolResult, duration_s: float) -> str | None:
    """Return the text of a result without its streams, which no model reads; None for one that is too large."""
    if len(result.content) + len(result.note) > _CONTENT_LIMIT_BYTES:
        return None
    return StoredResult.of(replace(result, stdout=b"", stderr=b""), duration_s).model_dump_json()


def earlier_call(row: Mapping[str, Any]) -> EarlierCall:
    """Return the outcome of a call in an earlier process, from its row in the journal."""
    verdict, kept, duration_s = _verdict(row), None, 0.0
    if row["state"] == "blocked":
        result = blocked_result(verdict)
    elif row["state"] != "executing" and row["result"]:
        kept = StoredResult.model_validate_json(row["result"])
        result, duration_s = kept.result(), kept.duration_s
    elif row["state"] in ("executing", "interrupted"):  # interrupted: the run is taken over for the second time
        since = datetime.fromtimestamp(row["started_us"] / 1_000_000, UTC).isoformat(timespec="seconds")
        result = ToolResult.error(
            f"interrupted: the gateway was lost while this call ran, which began at {since}. It may have had effects, "
            "all or some of them, and it was not run again. Look at what is there before you make it again.",
            outcome=INTERRUPTED,
        )
    else:
        code = f", exit code {row['exit_code']}" if row["exit_code"] is not None else ""
        result = ToolResult.error(
            f"this call ended (outcome {row['outcome']}{code}) just before the gateway was lost, and its result with "
            "it. It was not run again.",
            outcome=row["outcome"] or "failed",
        )
    return EarlierCall(result, verdict, duration_s, row["approval_id"] or "")


def _verdict(row: Mapping[str, Any]) -> Verdict:
    if row["verdict"] is None:
        why = "the call had passed before the gateway was lost"
        return Verdict(kind=VerdictKind.PROCEED, hook="journal", rule="passed", reason=why)
    would_be = {name: row[name] or "" for name in ("would_be", "would_be_rule")}
    word = PolicyWord(version=row["policy_version"], **would_be)
    kind = _KINDS.get(row["verdict"], VerdictKind.PROCEED)
    return Verdict(kind=kind, hook="policy", rule=row["rule"] or "", reason=row["reason"] or "", policy=word)
