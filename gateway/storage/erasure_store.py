"""The queries of erasure: every row of a thread, or of a tenant, whatever table it is in.

Which rows those are is read off the tables: a column tenant, else thread_id, else run_id says whose a row is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, Select, Table, delete, func, select, tuple_, update

from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.interrupted_calls import interrupt_calls
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
from gateway.storage.tenant_rows import belongs_to_tenant
from gateway.support.clock import NowUs, now_us

AUDIT = frozenset({audit_records.name, audit_heads.name})
"""The tables of the audit, which stays unless its deletion is asked for."""
_BATCH_ROWS = 1000
# What stands in the place of a deletion's id where the whole tenant goes.
_OF_TENANT = "tenant"
# Rows that point to others go first.
_TABLES: Sequence[Table] = tuple(reversed(metadata.sorted_tables))


class RunUnderWay(Exception):
    """A run is under way in the thread; the text is its id."""


class CallUnderWay(Exception):
    """A tool call is under way in the thread; the text is its id."""


class DeletionLost(Exception):
    """Another deletion of the thread has taken the place of this."""


@dataclass(frozen=True)
class Begun:
    """A deletion that has begun; `mark` is what an earlier one, a restore or a fork left in its place."""

    mark: str | None = None


class ErasureStore:
    """Removes rows for good."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def begin(self, tenant: str, name: str, deletion: str) -> Begun | None:
        """Let no run and no call begin in a thread any more; return None where there is no such thread.

        `deletion` is this deletion's id: it takes the place of an earlier one, which was cut short or has lost. Raises
        RunUnderWay and CallUnderWay, with nothing changed.
        """

        def work(connection: Connection) -> Begun | None:
            found = connection.execute(_thread(tenant, name)).first()
            if found is None:
                return None
            refuse_under_way(connection, found.id)
            connection.execute(update(threads).where(threads.c.id == found.id).values(deletion=deletion))
            return Begun(found.deletion)

        return await self._database.transact(work)

    async def give_up(self, tenant: str, name: str, deletion: str, begun: Begun | None = None) -> None:
        """Let runs and calls begin in a thread again, unless another deletion has taken the place of this.

        One whose restore was cut short takes none after this either.
        """
        own = (threads.c.tenant == tenant) & (threads.c.name == name) & (threads.c.deletion == deletion)
        mark = begun.mark if begun is not None else None
        await self._database.write((update(threads).where(own).values(deletion=mark), None))

    async def remove_thread(
        self, tenant: str, name: str, actor: str, deletion: str | None = None
    ) -> Mapping[str, int] | None:
        """Remove a thread, all of it or nothing; return the rows by table, None when it is not there.

        `deletion` is what it was begun with, if it was. Raises DeletionLost, RunUnderWay and CallUnderWay. The audit
        stays, and has a record of this.
        """

        def work(connection: Connection) -> Mapping[str, int] | None:
            found = connection.execute(_thread(tenant, name)).first()
            if found is None:
                return None
            if found.deletion != deletion:
                raise DeletionLost
            thread_id = found.id
            refuse_under_way(connection, thread_id)
            removed = remove_rows(connection, thread_id)
            entry = AuditEntry(tenant, "thread_deleted", actor=actor, thread=name, details=dict(removed))
            self._audit.append(connection, entries=[entry])
            return removed

        return await self._database.transact(work)

    async def stop_tenant(self, tenant: str) -> None:
        """Revoke all keys of a tenant, end what waits, and ask those who host its runs to end them.

        In its threads nothing begins any more.
        """
        now = self._clock()
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
        """Return whether any run of a tenant is running, or any call under way."""
        running = select(runs.c.id).where(runs.c.tenant == tenant, runs.c.status == "running").limit(1)
        executing = select(tool_calls.c.id).where(_is_executing(tenant)).limit(1)
        return bool(await self._database.rows(running) or await self._database.rows(executing))

    async def take_runs(self, tenant: str) -> None:
        """End the runs that nobody has ended; whoever still hosts one can write nothing of it any more.

        Calls that are under way are interrupted, as the audit says: their outcome is written nowhere any more.
        """
        now = self._clock()
        ended = {"status": "cancelled", "finished_us": now, "gateway": None, "epoch": runs.c.epoch + 1}
        left = (runs.c.tenant == tenant) & (runs.c.status == "running")

        def work(connection: Connection) -> None:
            connection.execute(update(runs).where(left).values(**ended))
            interrupt_calls(connection, self._audit, _is_executing(tenant), now)

        await self._database.transact(work)

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

    async def was_deleted(self, tenant: str) -> bool:
        """Return whether the operators' audit has that a tenant was deleted."""
        columns = audit_records.c
        said = json.dumps({"tenant": tenant})[1:-1]
        told = (columns.tenant == OPERATORS) & (columns.kind == "tenant_deleted")
        query = select(columns.details).where(told, columns.details.contains(said, autoescape=True))
        return any(json.loads(row.details).get("tenant") == tenant for row in await self._database.rows(query))

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


def _thread(tenant: str, name: str) -> Select[tuple[str, str | None]]:
    return select(threads.c.id, threads.c.deletion).where(threads.c.tenant == tenant, threads.c.name == name)


def _is_executing(tenant: str) -> ColumnElement[bool]:
    return (tool_calls.c.tenant == tenant) & (tool_calls.c.state == "executing")


def remove_rows(connection: Connection, thread_id: str) -> Mapping[str, int]:
    """Remove every row of a thread; return how many, by table."""
    removed = {}
    for table in _TABLES:
        belongs = belongs_to_thread(table, thread_id)
        if belongs is not None:
            removed[table.name] = connection.execute(delete(table).where(belongs)).rowcount
    return removed


def refuse_under_way(connection: Connection, thread_id: str) -> None:
    """Raise RunUnderWay or CallUnderWay: a call is from before it asks for its sandbox until its outcome is written."""
    running = select(runs.c.id).where(runs.c.thread_id == thread_id, runs.c.status.in_(RUNS_UNDER_WAY))
    if (run_id := connection.execute(running.limit(1)).scalar()) is not None:
        raise RunUnderWay(run_id)
    executing = select(tool_calls.c.id).where(tool_calls.c.thread_id == thread_id, tool_calls.c.state == "executing")
    if (call_id := connection.execute(executing.limit(1)).scalar()) is not None:
        raise CallUnderWay(call_id)


def belongs_to_thread(table: Table, thread_id: str) -> ColumnElement[bool] | None:
    """Return the condition for a table's rows that are a thread's; None for a table that belongs to none.

    The audit names threads, and stays; so does a snapshot that somebody asked for, though it names its thread.
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
