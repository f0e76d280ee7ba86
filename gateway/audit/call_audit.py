"""The audit entries of tool calls, without arguments and results, and of operations on background processes."""

import re
from collections.abc import Mapping

from pydantic import JsonValue

from agent.state import ToolExecution
from gateway.credentials.caller import actor
from gateway.redaction import Redactor
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from gateway.tenancy.tenants import Tenant

TOOL_CALL = "tool_call"
# Shorter than every secret.
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,19}")
_DETAILS = ("exit_code", "would_be", "would_be_rule", "approval_id")


def shown_name(name: str, redactor: Redactor) -> str:
    """Return a tool's name as it is stored; a model may have called anything."""
    return name if _PLAIN.fullmatch(name) else redactor.text(name)


def call_entry(
    thread: Thread,
    tool: ToolExecution,
    row: Mapping[str, str | None],
    ended: Mapping[str, JsonValue],
    *,
    duration_us: int = 0,
) -> AuditEntry:
    """Return the entry of a call that has ended, waits or was blocked, from its journal row and its end."""
    size_bytes = ended["result_bytes"]
    details = {name: ended[name] for name in _DETAILS if ended[name] is not None}
    if tool.approval_outcome:
        details["approval"] = tool.approval_outcome  # refused or expired
    withheld_by = tool.result.withheld_by if tool.result is not None else None
    if withheld_by:
        details["withheld_by"] = withheld_by
    return AuditEntry(
        thread.tenant,
        TOOL_CALL,
        actor(),
        thread=thread.name,
        run_id=row["run_id"] or "",
        call_id=tool.call.id,
        tool=row["name"] or "",
        arguments_digest=row["arguments_digest"] or "",
        verdict=str(ended["verdict"]),
        rule=str(ended["rule"] or ""),
        policy_version=str(ended["policy_version"]),
        outcome=str(ended["outcome"] or ""),
        size_bytes=size_bytes if isinstance(size_bytes, int) else 0,
        duration_us=duration_us,
        details=details,
    )


def process_entry(
    tenant: Tenant, thread: str, operation: str, process_id: str = "", size_bytes: int = 0, **facts: int
) -> AuditEntry:
    """Return the entry of a write, a signal or a removal, to be written before the caller gets its answer."""
    named = {"process_id": process_id} if process_id else {}
    return AuditEntry(
        tenant.name,
        "process",
        actor(),
        thread=thread or "default",
        tool="execute",
        verdict="allow",
        outcome="completed",
        size_bytes=size_bytes,
        details={"operation": operation, **named, **facts},
    )
