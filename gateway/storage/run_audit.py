"""What the audit is told of a run's beginning and end, in the transaction of that."""

from __future__ import annotations

from sqlalchemy import Connection, select

from gateway.credentials.caller import actor
from gateway.storage.audit_store import AuditEntry
from gateway.storage.tables import runs, threads


def run_started(
    run_id: str, *, tenant: str, thread: str, agent: str, policy_version: str, policy_mode: str
) -> AuditEntry:
    """Return the entry of a run that begins; the actor is who calls now."""
    return AuditEntry(
        tenant,
        "run_started",
        actor(),
        thread=thread,
        run_id=run_id,
        policy_version=policy_version,
        details={"agent": agent, "policy_mode": policy_mode},
    )


def run_changed(
    connection: Connection, kind: str, run_id: str, *, by: str = "gateway", details: dict[str, str] | None = None
) -> tuple[AuditEntry, ...]:
    """Return the entry of a run as it is in this transaction: run_finished, run_cancelled, run_taken_over.

    Nothing where there is no such run any more.
    """
    columns = runs.c
    query = (
        select(
            columns.tenant,
            columns.policy_version,
            columns.status,
            columns.stop_hook,
            columns.stop_rule,
            columns.started_us,
            columns.finished_us,
            threads.c.name.label("thread"),
        )
        .join(threads, columns.thread_id == threads.c.id)
        .where(columns.id == run_id)
    )
    found = connection.execute(query).first()
    if found is None:
        return ()
    stop = {"stop_hook": found.stop_hook, "stop_rule": found.stop_rule} if found.finished_us is not None else {}
    return (
        AuditEntry(
            found.tenant,
            kind,
            by,
            thread=found.thread,
            run_id=run_id,
            policy_version=found.policy_version,
            outcome=found.status,
            duration_us=max(0, found.finished_us - found.started_us) if found.finished_us is not None else 0,
            details={**stop, **(details or {})},
        ),
    )
