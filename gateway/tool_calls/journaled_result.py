"""The journal's answer to a gateway that takes a run over: what became of the run's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agent.decisions import PolicyWord, Verdict, VerdictKind
from agent.messages import ToolResult
from agent.tools.asking import blocked_result
from agent.tools.recovery import INTERRUPTED, EarlierCall
from gateway.tool_calls.stored_result import StoredResult

# Longer results are not kept: after a crash the model reads that the call ended and its result is lost.
_CONTENT_LIMIT_BYTES = 1024 * 1024
_KINDS = {"allow": VerdictKind.PROCEED, "ask": VerdictKind.ASK, "deny": VerdictKind.BLOCK}


def result_json(result: ToolResult, duration_s: float) -> str | None:
    """Return the text of a result without its streams, which no model reads; None for one that is too large."""
    if len(result.content) + len(result.note) > _CONTENT_LIMIT_BYTES:
        return None
    return StoredResult.of(replace(result, stdout=b"", stderr=b""), duration_s).model_dump_json()


def earlier_call(row: Mapping[str, Any]) -> EarlierCall:
    """Return the outcome of a call in an earlier process, from its row in the journal."""
    if row["state"] == "blocked":
        return EarlierCall(blocked_result(_verdict(row)), _verdict(row), approval_id=row["approval_id"] or "")
    if row["state"] == "executing":
        return EarlierCall(_interrupted(row), _verdict(row), approval_id=row["approval_id"] or "")
    kept = StoredResult.model_validate_json(row["result"]) if row["result"] else None
    result, duration_s = (_lost(row), 0.0) if kept is None else (kept.result(), kept.duration_s)
    return EarlierCall(result, _verdict(row), duration_s, row["approval_id"] or "")


def _interrupted(row: Mapping[str, Any]) -> ToolResult:
    since = datetime.fromtimestamp(row["started_us"] / 1_000_000, UTC).isoformat(timespec="seconds")
    return ToolResult.error(
        f"interrupted: the gateway was lost while this call ran, which began at {since}. It may have had effects, all "
        "or some of them, and it was not run again. Look at what is there before you make it again.",
        outcome=INTERRUPTED,
    )


def _lost(row: Mapping[str, Any]) -> ToolResult:
    """Return a result for a call that ended and whose own result is lost."""
    if row["state"] == "interrupted":  # the run is taken over for the second time
        return _interrupted(row)
    code = f", exit code {row['exit_code']}" if row["exit_code"] is not None else ""
    return ToolResult.error(
        f"this call ended (outcome {row['outcome']}{code}) just before the gateway was lost, and its result with it. "
        "It was not run again.",
        outcome=row["outcome"] or "failed",
    )


def _verdict(row: Mapping[str, Any]) -> Verdict:
    if row["verdict"] is None:
        why = "the call had passed before the gateway was lost"
        return Verdict(kind=VerdictKind.PROCEED, hook="journal", rule="passed", reason=why)
    would_be = {name: row[name] or "" for name in ("would_be", "would_be_rule")}
    word = PolicyWord(version=row["policy_version"], **would_be)
    kind = _KINDS.get(row["verdict"], VerdictKind.PROCEED)
    return Verdict(kind=kind, hook="policy", rule=row["rule"] or "", reason=row["reason"] or "", policy=word)
