"""The queries of engines: which engine has which threads' workspaces, and moving them off an engine that is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import Connection, func, select, update

from gateway.storage.audit_store import OPERATORS, AuditEntry
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import gateways, threads


class EngineServed(Exception):
    """A gateway of the engine is still serving; the text is its address."""


@dataclass(frozen=True)
class StoredEngine:
    """An engine with threads, how many, and whether a gateway of it is serving."""

    id: str
    threads: int
    serves: bool


class EngineStore(Queries):
    """Typed access to the engines of threads."""

    async def engines(self) -> Sequence[StoredEngine]:
        """Return the engines that have threads."""
        count = func.count().label("threads")
        query = select(threads.c.engine, count).where(threads.c.engine.is_not(None)).group_by(threads.c.engine)
        live = select(gateways.c.engine).where(gateways.c.expires_us > self.clock())
        serving = {row.engine for row in await self._database.rows(live)}
        found = await self._database.rows(query.order_by(threads.c.engine))
        return [StoredEngine(row.engine, row.threads, row.engine in serving) for row in found]

    async def engine_of(self, thread_id: str) -> str | None:
        """Return the engine that has a thread's workspace; None if there is none yet."""
        engine: str | None = await self._database.scalar(select(threads.c.engine).where(threads.c.id == thread_id))
        return engine

    @transaction
    def claim(self, connection: Connection, thread_id: str, engine: str) -> str:
        """Return the engine of a thread, which becomes the given one if it had none."""
        free = (threads.c.id == thread_id) & threads.c.engine.is_(None)
        connection.execute(update(threads).where(free).values(engine=engine))
        found = connection.execute(select(threads.c.engine).where(threads.c.id == thread_id)).scalar_one_or_none()
        return found or engine

    @transaction
    def adopt(self, connection: Connection, engine: str, *, to: str, tenant: str | None, by: str) -> Mapping[str, int]:
        """Move the threads of an engine, of all tenants or one, to the engine `to`; return how many by tenant.

        It is recorded in each tenant's audit and the operators'. Raises EngineServed.
        """
        chosen = threads.c.engine == engine
        if tenant is not None:
            chosen &= threads.c.tenant == tenant
        live = select(gateways.c.address).where(gateways.c.engine == engine, gateways.c.expires_us > self.clock())
        if (address := connection.execute(live.limit(1)).scalar()) is not None:
            raise EngineServed(address)
        counted = select(threads.c.tenant, func.count().label("threads")).where(chosen).group_by(threads.c.tenant)
        moved: dict[str, int] = {row.tenant: row.threads for row in connection.execute(counted)}
        if moved:
            connection.execute(update(threads).where(chosen).values(engine=to))
            details: dict[str, JsonValue] = {"from": engine, "to": to}
            entries = [
                AuditEntry(name, "threads_adopted", actor=by, details={**details, "threads": count})
                for name, count in sorted(moved.items())
            ]
            details |= {"threads": sum(moved.values()), "tenants": len(moved)}
            entries.append(AuditEntry(OPERATORS, "threads_adopted", actor=by, details=details))
            self.audit.append(connection, entries=entries)
        return moved
