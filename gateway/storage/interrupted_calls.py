"""Calls whose gateway was lost: the only place that journals and audits their outcome."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select, update

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.tables import runs, threads, tool_calls

INTERRUPTED_REASON = "the gateway stopped while this was under way; what it had done by then is not known"


def interrupt_calls(connection: Connection, audit: AuditStore, which: ColumnElement[bool], at_us: int) -> int:
    """Journal calls as interrupted, and append that to the audit; return how many there were."""
    done = {"state": "interrupted", "outcome": "interrupted", "reason": INTERRUPTED_REASON, "is_error": True}
    audit.append(connection, entries=_entries(connection, which))
    return connection.execute(update(tool_calls).where(which).values(**done, finished_us=at_us)).rowcount


def _entries(connection: Connection, which: ColumnElement[bool]) -> list[AuditEntry]:
    """Return the entries of calls that are about to be marked as interrupted; their rows are locked."""
    columns = tool_calls.c
    query = (
        select(tool_calls, threads.c.name.label("thread"), runs.c.started_by)
        .join(threads, columns.thread_id == threads.c.id)
        .outerjoin(runs, columns.run_id == runs.c.id)
        .where(which)
        .with_for_update(of=tool_calls)
    )
    return [
        AuditEntry(
            row.tenant,
            "tool_call",
            row.started_by or "gateway",
            thread=row.thread,
            run_id=row.run_id or "",
            call_id=row.id,
            tool=row.name,
            arguments_digest=row.arguments_digest,
            # An executing call was allowed; the rule is written only when it ends.
            verdict=row.verdict or "allow",
            rule=row.rule or "",
            policy_version=row.policy_version,
            outcome="interrupted",
        )
        for row in connection.execute(query)
    ]
