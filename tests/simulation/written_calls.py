"""A call as the journal writes it."""

from __future__ import annotations

from typing import Any, Final

from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread

ENDED: Final[dict[str, Any]] = {
    "state": "finished",
    "verdict": "allow",
    "rule": "all",
    "reason": "allowed",
    "outcome": "exited",
    "exit_code": 0,
    "is_error": False,
    "result_bytes": 0,
    "policy_version": "policy_123456789012",
}


def call_row(thread: Thread, id_: str) -> dict[str, Any]:
    """Return the row of a call that begins."""
    return {
        "id": id_,
        "tenant": thread.tenant,
        "thread_id": thread.id,
        "run_id": None,
        "name": "execute",
        "arguments": '{"command":"true"}',
        "arguments_digest": "a" * 64,
        "state": "executing",
        "policy_version": ENDED["policy_version"],
    }


def call_entry(row: dict[str, Any]) -> AuditEntry:
    """Return its entry in the audit."""
    return AuditEntry(row["tenant"], "tool_call", tool="execute", call_id=row["id"], verdict="allow", outcome="exited")
