"""The queries of engines: which threads' workspaces each has, moving them off one that is gone, channel directories."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, select, update

from gateway.storage.audit_store import OPERATORS, AuditEntry
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import gateways, settings, threads

_CHANNELS = "channels:"
_ENGINE_OF = Prepared(select(threads.c.engine).where(threads.c.id == bindparam("of_thread")))
_STORED_CHANNELS = select(settings.c.value).where(settings.c.name.startswith(_CHANNELS))


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
        count = func.count().label("threads")
        query = select(threads.c.engine, count).where(threads.c.engine.is_not(None)).group_by(threads.c.engine)
        serving = {row.engine for row in await self._database.rows(live_addresses(self.clock()))}
        found = await self._database.rows(query.order_by(threads.c.engine))
        return [StoredEngine(row.engine, row.threads, row.engine in serving) for row in found]

    async def served_at(self) -> Sequence[str]:
        """Return the addresses of the gateways that serve."""
        return [row.address for row in await self._database.rows(live_addresses(self.clock()))]

    async def engine_of(self, thread_id: str) -> str | None:
        found = await self._database.look(_ENGINE_OF, {"of_thread": thread_id})
        return found[0].engine if found else None

    @transaction
    def claim(self, connection: Connection, thread_id: str, engine: str) -> str:
        """Return the engine of a thread, which becomes the given one if it had none."""
        free = (threads.c.id == thread_id) & threads.c.engine.is_(None)
        connection.execute(update(threads).where(free).values(engine=engine))
        found = connection.execute(select(threads.c.engine).where(threads.c.id == thread_id)).scalar_one_or_none()
        return found or engine

    @transaction
    def adopt(self, connection: Connection, engine: str, *, to: str, tenant: str | None, by: str) -> Mapping[str, int]:
        """Move threads of an engine to the engine `to` and audit it; return how many by tenant. Raises EngineServed."""
        chosen = threads.c.engine == engine
        if tenant is not None:
            chosen &= threads.c.tenant == tenant
        if serving := connection.execute(live_addresses(self.clock()).where(gateways.c.engine == engine)).first():
            raise EngineServed(serving.address)
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
            self.audit.append(connection, *entries)
        return moved


@dataclass(frozen=True)
class ChannelRecord:
    """The directory of an engine's gateways, its path when recorded, and the address of a live gateway or ""."""

    engine: str
    identity: str
    path: Path
    served_at: str = ""


class ChannelStore(Queries):
    """Typed access to the channel directories of engines."""

    async def records(self) -> Sequence[ChannelRecord]:
        live = await self._database.rows(live_addresses(self.clock()))
        return _records(await self._database.rows(_STORED_CHANNELS), live)

    @transaction
    def claim(
        self, connection: Connection, claim: ChannelRecord, check: Callable[[Sequence[ChannelRecord]], None]
    ) -> None:
        """Record the directory of an engine, and of no other engine, unless `check` of the current records raises."""
        live = connection.execute(live_addresses(self.clock())).all()
        records = _records(connection.execute(_STORED_CHANNELS).all(), live)
        check(records)
        gone = [one.engine for one in records if one.engine == claim.engine or one.identity == claim.identity]
        connection.execute(delete(settings).where(settings.c.name.in_([_name(engine) for engine in gone])))
        value = {"engine": claim.engine, "identity": claim.identity, "path": str(claim.path)}
        connection.execute(insert(settings).values(name=_name(claim.engine), value=json.dumps(value)))


def _records(stored: Sequence[Row[Any]], live: Sequence[Row[Any]]) -> Sequence[ChannelRecord]:
    addresses = {row.engine: row.address for row in live}
    return [
        ChannelRecord(one["engine"], one["identity"], Path(one["path"]), addresses.get(one["engine"], ""))
        for one in (json.loads(row.value) for row in stored)
    ]


def live_addresses(now_us: int) -> Select[tuple[str, str]]:
    """Select the engine and the address of each gateway with a valid lease."""
    return select(gateways.c.engine, gateways.c.address).where(gateways.c.expires_us > now_us)


def _name(engine: str) -> str:
    return _CHANNELS + hashlib.sha256(engine.encode()).hexdigest()[:32]
