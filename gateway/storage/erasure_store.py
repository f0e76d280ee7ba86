"""The queries of erasure: every row of a thread, or of a tenant, whatever table it is in.

Which rows those are is read off the tables: a column tenant, else thread_id, else run_id says whose a row is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, tuple_, update

from gateway.clock import NowUs, now_us
from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore
from gateway.storage.database import Database
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
    threads,
)
from gateway.storage.tenant_rows import belongs_to_tenant

AUDIT = frozenset({audit_records.name, audit_heads.name})
"""The tables of the audit, which stays unless its deletion is asked for."""
_BATCH_ROWS = 1000
# Rows that point to others go first.
_TABLES: Sequence[Table] = tuple(reversed(metadata.sorted_tables))


class RunUnderWay(Exception):
    """A run is under way in the thread; the text is its id."""


class ErasureStore:
    """Removes rows for good."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def may_remove(self, tenant: str, name: str) -> bool:
        """Return whether there is such a thread; raises RunUnderWay."""
        query = (
            select(threads.c.id, runs.c.id.label("run_id"))
            .outerjoin(runs, (runs.c.thread_id == threads.c.id) & runs.c.status.in_(RUNS_UNDER_WAY))
            .where(threads.c.tenant == tenant, threads.c.name == name)
        )
        found = await self._database.rows(query)
        if found and found[0].run_id is not None:
            raise RunUnderWay(found[0].run_id)
        return bool(found)

    async def remove_thread(self, tenant: str, name: str, actor: str) -> Mapping[str, int] | None:
        """Remove a thread, all of it or nothing; return the rows by table, None when it is not there.

        Raises RunUnderWay. The audit stays, and has a record of this.
        """

        def work(connection: Connection) -> Mapping[str, int] | None:
            thread_id = connection.execute(
                select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
            ).scalar()
            if thread_id is None:
                return None
            under_way = select(runs.c.id).where(runs.c.thread_id == thread_id, runs.c.status.in_(RUNS_UNDER_WAY))
            if (run_id := connection.execute(under_way).scalar()) is not None:
                raise RunUnderWay(run_id)
            removed = {}
            for table in _TABLES:
                belongs = belongs_to_thread(table, thread_id)
                if belongs is not None:
                    removed[table.name] = connection.execute(delete(table).where(belongs)).rowcount
            entry = AuditEntry(tenant, "thread_deleted", actor=actor, thread=name, details=dict(removed))
            self._audit.append(connection, entries=[entry])
            return removed

        return await self._database.transact(work)

    async def stop_tenant(self, tenant: str) -> None:
        """Revoke all keys of a tenant, end what waits, and ask those who host its runs to end them."""
        now = self._clock()
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
        )

    async def running(self, tenant: str) -> int:
        """Return how many runs of a tenant are running."""
        query = select(func.count().label("runs")).where(runs.c.tenant == tenant, runs.c.status == "running")
        return int((await self._database.rows(query))[0].runs)

    async def take_runs(self, tenant: str) -> None:
        """End the runs that nobody has ended; whoever still hosts one can write nothing of it any more."""
        ended = {"status": "cancelled", "finished_us": self._clock(), "gateway": None, "epoch": runs.c.epoch + 1}
        left = (runs.c.tenant == tenant) & (runs.c.status == "running")
        await self._database.write((update(runs).where(left).values(**ended), None))

    async def threads_of(self, tenant: str, name: str | None = None) -> Mapping[str, str | None]:
        """Return a tenant's threads, or the one of a name, with the engine that the files are on, where known."""
        query = select(threads.c.name, threads.c.engine).where(threads.c.tenant == tenant)
        if name is not None:
            query = query.where(threads.c.name == name)
        return {row.name: row.engine for row in await self._database.rows(query)}

    async def forget_engine(self, tenant: str, name: str) -> None:
        """Note that a thread has files on no engine any more."""
        this = (threads.c.tenant == tenant) & (threads.c.name == name)
        await self._database.write((update(threads).where(this).values(engine=None), None))

    async def remove_tenant(self, tenant: str) -> Mapping[str, int]:
        """Remove every row of a tenant but the audit's, in batches; return how many, by table.

        A policy's text goes too, where no other tenant ever had the same.
        """
        only_here = ~policies.c.digest.in_(select(policy_changes.c.digest).where(policy_changes.c.tenant != tenant))
        ever_here = policies.c.digest.in_(select(policy_changes.c.digest).where(policy_changes.c.tenant == tenant))
        texts = [row.digest for row in await self._database.rows(select(policies.c.digest).where(only_here, ever_here))]
        removed = {}
        for table in _TABLES:
            belongs = belongs_to_tenant(table, tenant)
            if belongs is not None and table.name not in AUDIT:
                removed[table.name] = await self._drained(table, belongs)
        unused = policies.c.digest.in_(texts) & policies.c.digest.not_in(select(policy_changes.c.digest))
        removed[policies.name] = await self._drained(policies, unused)
        return removed

    async def _drained(self, table: Table, which: ColumnElement[bool]) -> int:
        key = tuple_(*table.primary_key.columns)
        batch = delete(table).where(key.in_(select(*table.primary_key.columns).where(which).limit(_BATCH_ROWS)))
        removed = 0
        while gone := await self._database.transact(lambda connection: connection.execute(batch).rowcount):
            removed += gone
        return removed

    async def tell(
        self,
        tenant: str,
        *,
        audit: bool,
        actor: str,
        removed: Mapping[str, int],
        workspaces: int,
        on_engine: Mapping[str, int],
    ) -> tuple[Mapping[str, int], Mapping[str, int], int]:
        """Take the audit away where it is to go, count what is left, and write both into the operators' audit.

        All of it in one transaction. `on_engine` was counted on the engine, and is left as well. Returns what was
        removed in all, what is left, and the record's number.
        """
        work = partial(
            self._tell,
            tenant=tenant,
            audit=audit,
            actor=actor,
            removed=removed,
            workspaces=workspaces,
            on_engine=on_engine,
        )
        everything, left = await self._database.transact(work)
        told = select(func.max(audit_records.c.sequence).label("last")).where(
            audit_records.c.tenant == OPERATORS, audit_records.c.kind == "tenant_deleted"
        )
        return everything, left, int((await self._database.rows(told))[0].last)

    def _tell(
        self,
        connection: Connection,
        *,
        tenant: str,
        audit: bool,
        actor: str,
        removed: Mapping[str, int],
        workspaces: int,
        on_engine: Mapping[str, int],
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        head = connection.execute(select(audit_heads).where(audit_heads.c.tenant == tenant)).mappings().first()
        everything = dict(removed)
        if audit:
            everything[audit_records.name] = self._audit.erase(connection, tenant=tenant)
        left = dict(on_engine)
        for table in _TABLES:
            belongs = belongs_to_tenant(table, tenant)
            if belongs is not None:
                counted = select(func.count()).select_from(table).where(belongs)
                left[table.name] = connection.execute(counted).scalar_one()
        details: dict[str, JsonValue] = {
            "tenant": tenant,
            "removed": dict(everything),
            "left": dict(left),
            "workspaces_removed": workspaces,
            "audit_sequence": head["sequence"] if head else 0,
            "audit_digest": head["digest"] if head else "",
        }
        entry = AuditEntry(OPERATORS, "tenant_deleted", actor=actor, details=details)
        self._audit.append(connection, entries=[entry])
        return everything, left


def belongs_to_thread(table: Table, thread_id: str) -> ColumnElement[bool] | None:
    """Return the condition for a table's rows that are a thread's; None for a table that belongs to none.

    The audit names threads, and stays.
    """
    if table.name in AUDIT:
        return None
    if table is threads:
        return threads.c.id == thread_id
    if "thread_id" in table.c:
        return table.c["thread_id"] == thread_id
    if "run_id" in table.c:
        return table.c["run_id"].in_(select(runs.c.id).where(runs.c.thread_id == thread_id))
    return None
