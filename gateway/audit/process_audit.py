"""Audit entries of a background process other than its start: a write, a signal, its removal."""

from __future__ import annotations

from gateway.credentials.caller import actor
from gateway.storage.audit_store import AuditEntry
from gateway.tenancy.tenants import Tenant


def process_entry(
    tenant: Tenant, thread: str, operation: str, process_id: str = "", size_bytes: int = 0, **facts: int
) -> AuditEntry:
    """Return the entry of an operation, to be written before the caller gets its answer."""
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
