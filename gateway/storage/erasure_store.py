"""The queries of erasure: counting and deleting all rows of a thread or a tenant, in every table.

A row's owner follows from its table's columns: tenant, else thread_id, else run_id.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, Table, delete, func, literal, select, union_all, update

from gateway.errors import ThreadBusy
from gateway.storage.audit_store import OPERATORS, AuditEntry
from gateway.storage.call_journal import interrupt_calls
from gateway.storage.database import Database
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import (
    RUNS_UNDER_WAY,
    api_keys,
    approvals,
    audit_heads,
    audit_records,
    metadata,
    policies,
    policy_changes,
    runs,
    snapshots,
    threads,
    tool_calls,
)
from gateway.storage.thread_store import no_thread

AUDIT = frozenset({audit_records.name, audit_heads.name})
"""The tables of the audit, which stays unless its deletion is requested."""
# The mark of a thread whose whole tenant is being deleted.
_OF_TENANT = "tenant"
# Rows with foreign keys go before the rows they refer to.
_TABLES: Sequence[Table] = tuple(reversed(metadata.sorted_tables))
_DELETIONS = (audit_records.c.tenant == OPERATORS) & (audit_records.c.kind == "tenant_deleted")


@dataclass(frozen=True)
class TenantErasure:
    """A finished deletion of a tenant's data, to be recorded: `on_engine` is what is left on the engine, by kind."""

    tenant: str
    audit: bool
    actor: str
    removed: Mapping[str, int]
    workspaces: int
    on_engine: Mapping[str, int]


@dataclass(frozen=True)
class Erased:
    """The removed and remaining rows by table; `audit_sequence` is the record in the operators' audit.

    `left` includes the engine's `volumes` and `containers`; `workspaces_removed` counts volumes that existed.
    """

    removed: Mapping[str, int]
    left: Mapping[str, int]
    workspaces_removed: int
    audit_sequence: int


class ErasureStore(Queries):
    """Deletes rows permanently."""

    @transaction
    def begin(self, connection: Connection, tenant: str, name: str, deletion: str) -> str | None:
        """Close a thread to runs and calls; return the mark that an earlier deletion, a restore or a fork left.

        NotFound and ThreadBusy change nothing.
        """
        id_, mark = _thread(connection, tenant, name)
        refuse_under_way(connection, id_, name)
        connection.execute(update(threads).where(threads.c.id == id_).values(deletion=deletion))
        return mark

    async def give_up(self, tenant: str, name: str, deletion: str, mark: str | None) -> None:
        """Give a thread the mark that begin() returned, unless another deletion replaced this one."""
        own = _named(tenant, name) & (threads.c.deletion == deletion)
        await self._database.write((update(threads).where(own).values(deletion=mark), None))

    @transaction
    def remove_thread(
        self, connection: Connection, tenant: str, name: str, actor: str, deletion: str | None = None
    ) -> Mapping[str, int]:
        """Delete a thread atomically; return the deleted rows by table.

        `deletion` is what begin() was called with, if it was. Raises NotFound and ThreadBusy. The audit stays, and
        records the deletion.
        """
        id_, mark = _thread(connection, tenant, name)
        if mark != deletion:
            raise ThreadBusy(f"another call is deleting thread {name[:64]!r}: wait until it is done")
        refuse_under_way(connection, id_, name)
        removed = remove_rows(connection, id_)
        entry = AuditEntry(tenant, "thread_deleted", actor=actor, thread=name, details=dict(removed))
        self.audit.append(connection, entry)
        return removed

    async def stop_tenant(self, tenant: str) -> None:
        """Revoke the keys, end the waiting runs, request the end of running ones, and close the threads of a tenant."""
        now = self.clock()
        going = update(threads).where(threads.c.tenant == tenant).values(deletion=_OF_TENANT)
        keys = update(api_keys).where(api_keys.c.tenant == tenant, api_keys.c.revoked_us.is_(None))
        of_tenant = runs.c.tenant == tenant
        waiting = update(runs).where(of_tenant, runs.c.status == "waiting")
        running = update(runs).where(of_tenant, runs.c.status == "running", runs.c.cancel_us.is_(None))
        open_ = update(approvals).where(approvals.c.tenant == tenant, approvals.c.status.in_(("pending", "approved")))
        await self._database.write(
            (keys.values(revoked_us=now), None),
            (open_.values(status="cancelled", changed_us=now), None),
            (waiting.values(status="cancelled", finished_us=now, checkpoint=None), None),
            (running.values(cancel_us=now), None),
            (going, None),
        )

    async def under_way(self, tenant: str) -> bool:
        return await self._has(runs.c.id, runs.c.tenant == tenant, runs.c.status == "running") or await self._has(
            tool_calls.c.id, _is_executing(tenant)
        )

    @transaction
    def take_runs(self, connection: Connection, tenant: str) -> None:
        """End the remaining runs, whose gateways can no longer write to them; open calls count as interrupted."""
        now = self.clock()
        ended = {"status": "cancelled", "finished_us": now, "gateway": None, "epoch": runs.c.epoch + 1}
        left = (runs.c.tenant == tenant) & (runs.c.status == "running")
        connection.execute(update(runs).where(left).values(**ended))
        interrupt_calls(connection, self.audit, _is_executing(tenant), now)

    async def threads_of(self, tenant: str, name: str | None = None) -> Mapping[str, str | None]:
        which = threads.c.tenant == tenant if name is None else _named(tenant, name)
        query = select(threads.c.name, threads.c.engine).where(which)
        return {row.name: row.engine for row in await self._database.rows(query)}

    async def forget_engine(self, tenant: str, name: str) -> None:
        await self._database.write((update(threads).where(_named(tenant, name)).values(engine=None), None))

    async def remove_tenant(self, tenant: str) -> Mapping[str, int]:
        """Delete every row of a tenant except the audit, in batches; return how many, by table.

        A policy's text goes too, unless another tenant ever had the same.
        """
        only_here = ~policies.c.digest.in_(select(policy_changes.c.digest).where(policy_changes.c.tenant != tenant))
        ever_here = policies.c.digest.in_(select(policy_changes.c.digest).where(policy_changes.c.tenant == tenant))
        texts = [row.digest for row in await self._database.rows(select(policies.c.digest).where(only_here, ever_here))]
        owned = [(table, which) for table, which in _of_tenant_by_table(tenant) if table.name not in AUDIT]
        removed = {table.name: await self._drain(table, which) for table, which in owned}
        unused = policies.c.digest.in_(texts) & policies.c.digest.not_in(select(policy_changes.c.digest))
        removed[policies.name] = await self._drain(policies, unused)
        return removed

    async def was_deleted(self, tenant: str) -> bool:
        columns = audit_records.c
        said = json.dumps({"tenant": tenant})[1:-1]
        query = select(columns.details).where(_DELETIONS, columns.details.contains(said, autoescape=True))
        return any(json.loads(row.details).get("tenant") == tenant for row in await self._database.rows(query))

    async def record(self, erasure: TenantErasure) -> Erased:
        """Delete the audit if requested, count what is left, and audit both."""
        everything, left = await self._recorded(erasure)
        sequence = await self._database.scalar(select(func.max(audit_records.c.sequence)).where(_DELETIONS))
        return Erased(everything, left, erasure.workspaces, int(sequence))

    @transaction
    def _recorded(self, connection: Connection, erasure: TenantErasure) -> tuple[Mapping[str, int], Mapping[str, int]]:
        tenant = erasure.tenant
        head = connection.execute(select(audit_heads).where(audit_heads.c.tenant == tenant)).first()
        everything, left = dict(erasure.removed), dict(erasure.on_engine)
        if erasure.audit:
            everything[audit_records.name] = self.audit.erase(connection, tenant=tenant)
        for table, which in _of_tenant_by_table(tenant):
            left[table.name] = connection.execute(select(func.count()).select_from(table).where(which)).scalar_one()
        details: dict[str, JsonValue] = {
            "tenant": tenant,
            "removed": dict(everything),
            "left": dict(left),
            "workspaces_removed": erasure.workspaces,
            "audit_sequence": head.sequence if head else 0,
            "audit_digest": head.digest if head else "",
        }
        self.audit.append(connection, AuditEntry(OPERATORS, "tenant_deleted", erasure.actor, details=details))
        return everything, left


def _named(tenant: str, name: str) -> ColumnElement[bool]:
    return (threads.c.tenant == tenant) & (threads.c.name == name)


def _thread(connection: Connection, tenant: str, name: str) -> tuple[str, str | None]:
    """Return a thread's id and mark; NotFound."""
    found = connection.execute(select(threads.c.id, threads.c.deletion).where(_named(tenant, name))).first()
    if found is None:
        raise no_thread(name)
    return found.id, found.deletion


def _is_executing(tenant: str) -> ColumnElement[bool]:
    return (tool_calls.c.tenant == tenant) & (tool_calls.c.state == "executing")


def remove_rows(connection: Connection, thread_id: str) -> Mapping[str, int]:
    """Delete every row of a thread; return how many, by table."""
    removed = {}
    for table in _TABLES:
        belongs = belongs_to_thread(table, thread_id)
        if belongs is not None:
            removed[table.name] = connection.execute(delete(table).where(belongs)).rowcount
    return removed


def refuse_under_way(connection: Connection, thread_id: str, name: str, advice: str = "cancel it first") -> None:
    """Raise ThreadBusy for a run under way, with `advice`, or a call.

    A call counts from before it gets its sandbox until its outcome is written.
    """
    running = select(runs.c.id).where(runs.c.thread_id == thread_id, runs.c.status.in_(RUNS_UNDER_WAY))
    if (run_id := connection.execute(running.limit(1)).scalar()) is not None:
        raise ThreadBusy(f"thread {name[:64]!r} is busy with run {run_id}: {advice}")
    executing = select(tool_calls.c.id).where(tool_calls.c.thread_id == thread_id, tool_calls.c.state == "executing")
    if connection.execute(executing.limit(1)).first() is not None:
        raise busy_with_calls(name)


def busy_with_calls(name: str) -> ThreadBusy:
    """Return the error for a thread with calls under way."""
    return ThreadBusy(f"thread {name[:64]!r} is busy with tool calls: wait until they finish")


def belongs_to_thread(table: Table, thread_id: str) -> ColumnElement[bool] | None:
    """Return the condition for a thread's rows of a table; None for a table that belongs to no thread.

    The audit stays, though it names threads, and so do snapshots taken on request.
    """
    if table.name in AUDIT:
        return None
    if table is snapshots:
        return (snapshots.c.thread_id == thread_id) & (snapshots.c.kind != "asked")
    if table is threads:
        return threads.c.id == thread_id
    if "thread_id" in table.c:
        return table.c["thread_id"] == thread_id
    if "run_id" in table.c:
        return table.c["run_id"].in_(select(runs.c.id).where(runs.c.thread_id == thread_id))
    return None


async def rows_of(database: Database, tenant: str) -> Mapping[str, int]:
    """Return the number of a tenant's rows in each table that belongs to tenants."""
    counts = [
        select(literal(table.name).label("name"), func.count().label("rows")).where(which)
        for table, which in _of_tenant_by_table(tenant)
    ]
    return {row.name: row.rows for row in await database.rows(select(union_all(*counts).subquery()))}


def _of_tenant_by_table(tenant: str) -> list[tuple[Table, ColumnElement[bool]]]:
    found = [(table, belongs_to_tenant(table, tenant)) for table in _TABLES]
    return [(table, which) for table, which in found if which is not None]


def belongs_to_tenant(table: Table, tenant: str) -> ColumnElement[bool] | None:
    """Return the condition for a tenant's rows of a table; None for a table that belongs to no tenant."""
    if "tenant" in table.c:
        return table.c["tenant"] == tenant
    for column, owners in (("thread_id", threads), ("run_id", runs)):
        if column in table.c:
            return table.c[column].in_(select(owners.c.id).where(owners.c.tenant == tenant))
    return None
