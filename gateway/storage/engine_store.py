"""The queries of engines: which threads have their workspaces where, and moving those of an engine that is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import Connection, func, select, update

from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import gateways, threads
from gateway.support.clock import NowUs, now_us


class EngineServed(Exception):
    """A gateway of the engine serves still; the text is its address."""


@dataclass(frozen=True)
class StoredEngine:
    """An engine that threads are on, how many, and whether a gateway of it serves."""

    id: str
    threads: int
    serves: bool


class EngineStore:
    """Typed access to the engines of threads."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def engines(self) -> Sequence[StoredEngine]:
        """Return the engines that threads are on."""
        count = func.count().label("threads")
        query = select(threads.c.engine, count).where(threads.c.engine.is_not(None)).group_by(threads.c.engine)
        live = select(gateways.c.engine).where(gateways.c.expires_us > self._clock())
        serving = {row.engine for row in await self._database.rows(live)}
        found = await self._database.rows(query.order_by(threads.c.engine))
        return [StoredEngine(row.engine, row.threads, row.engine in serving) for row in found]

    async def engine_of(self, thread_id: str) -> str | None:
        """Return the engine that a thread's workspace is on; None where it has none yet."""
        found = await self._database.rows(select(threads.c.engine).where(threads.c.id == thread_id))
        return found[0].engine if found else None

    async def claim(self, thread_id: str, engine: str) -> str:
        """Return the engine of a thread, which is the given one from now on where it had none."""

        def work(connection: Connection) -> str:
            free = (threads.c.id == thread_id) & threads.c.engine.is_(None)
            connection.execute(update(threads).where(free).values(engine=engine))
            found = connection.execute(select(threads.c.engine).where(threads.c.id == thread_id)).scalar_one_or_none()
            return found or engine

        return await self._database.transact(work)

    async def adopt(self, engine: str, *, to: str, tenant: str | None, by: str) -> Mapping[str, int]:
        """Have the threads of an engine on another one, `to`, from now on; return how many by tenant.

        With `tenant` only those of that tenant. Each tenant's audit is told, and the operators'. Raises EngineServed.
        """
        chosen = (
            (threads.c.engine == engine)
            if tenant is None
            else (threads.c.engine == engine) & (threads.c.tenant == tenant)
        )

        def work(connection: Connection) -> Mapping[str, int]:
            live = select(gateways.c.address).where(gateways.c.engine == engine, gateways.c.expires_us > self._clock())
            if (address := connection.execute(live.limit(1)).scalar()) is not None:
                raise EngineServed(address)
            counted = select(threads.c.tenant, func.count().label("threads")).where(chosen).group_by(threads.c.tenant)
            moved: dict[str, int] = {row.tenant: row.threads for row in connection.execute(counted)}
            if moved:
                connection.execute(update(threads).where(chosen).values(engine=to))
                details: dict[str, JsonValue] = {"from": engine, "to": to}
                told = [
                    AuditEntry(name, "threads_adopted", actor=by, details={**details, "threads": count})
                    for name, count in sorted(moved.items())
                ]
                everything: dict[str, JsonValue] = {**details, "threads": sum(moved.values()), "tenants": len(moved)}
                self._audit.append(
                    connection,
                    entries=[*told, AuditEntry(OPERATORS, "threads_adopted", actor=by, details=everything)],
                )
            return moved

        return await self._database.transact(work)
