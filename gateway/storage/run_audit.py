"""The audit entries of a run's start and end, written in the same transaction."""

from __future__ import annotations

from sqlalchemy import Connection, select

from gateway.credentials.caller import actor
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Run
from gateway.storage.tables import runs, threads


def run_started(run: Run) -> AuditEntry:
    """Return the entry of a run that starts; the actor is the current caller."""
    return AuditEntry(
        run.tenant,
        "run_started",
        actor(),
        thread=run.thread,
        run_id=run.id,
        policy_version=run.policy_version,
        details={"agent": run.agent, "policy_mode": run.policy_mode},
    )


def run_changed(
    connection: Connection, kind: str, run_id: str, *, by: str = "gateway", details: dict[str, str] | None = None
) -> tuple[AuditEntry, ...]:
    """Return the entry of a run as it is in this transaction; empty if the run no longer exists."""
    columns = ("tenant", "policy_version", "status", "stop_hook", "stop_rule", "started_us", "finished_us")
    query = select(threads.c.name.label("thread"), *(runs.c[name] for name in columns))
    found = connection.execute(query.join(threads, runs.c.thread_id == threads.c.id).where(runs.c.id == run_id)).first()
    if found is None:
        return ()
    over = found.finished_us is not None
    stop = {"stop_hook": found.stop_hook, "stop_rule": found.stop_rule} if over else {}
    return (
        AuditEntry(
            found.tenant,
            kind,
            by,
            thread=found.thread,
            run_id=run_id,
            policy_version=found.policy_version,
            outcome=found.status,
            duration_us=max(0, found.finished_us - found.started_us) if over else 0,
            details={**stop, **(details or {})},
        ),
    )
