"""What every group of queries has: the database, the audit, and a clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
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
