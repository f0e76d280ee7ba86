"""What every group of queries has: the database, the audit, and a clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, select, tuple_

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.rows import mapped
from gateway.support.clock import MakeId, NowUs, make_id, now_us

P = ParamSpec("P")
S = TypeVar("S", bound="Queries")
T = TypeVar("T")


def transaction(
    work: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run a method in one transaction of the writer; see Database.transact. It sees the caller's context variables."""

    @functools.wraps(work)
    async def transacted(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        context = copy_context()
        return await self._database.transact(lambda connection: context.run(work, self, connection, *args, **kwargs))

    return transacted


class Queries:
    """A database, and the audit that is written in the same transactions; `gateway` hosts what is begun here."""

    def __init__(
        self, database: Database, clock: NowUs = now_us, *, gateway: str | None = None, ids: MakeId = make_id
    ) -> None:
        self._database = database
        self.audit = AuditStore(database, clock)
        self.clock = clock
        self.gateway = gateway
        self.ids = ids

    async def _all(self, kind: type[T], query: Select[Any]) -> Sequence[T]:
        return [mapped(kind, row) for row in await self._database.rows(query)]

    async def _one(self, kind: type[T], query: Select[Any]) -> T | None:
        found = await self._database.first(query)
        return None if found is None else mapped(kind, found)

    async def _has(self, column: ColumnElement[Any], *where: ColumnElement[bool]) -> bool:
        return bool(await self._database.rows(select(column).where(*where).limit(1)))

    async def _drain(self, table: Table, which: ColumnElement[bool], batch_rows: int) -> int:
        """Delete rows, a batch in each transaction, since all other writers wait meanwhile; return how many."""
        key = tuple_(*table.primary_key.columns)
        batch = select(*table.primary_key.columns).where(which).limit(batch_rows)
        deletion, removed = delete(table).where(which, key.in_(batch)), 0
        while gone := await self._database.transact(lambda connection: connection.execute(deletion).rowcount):
            removed += gone
        return removed
