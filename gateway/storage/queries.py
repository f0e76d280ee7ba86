"""What every group of queries has: the database, the audit, a clock; rows as dataclasses, filters, pages and slices."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, Delete, Row, Select, Table, Update, delete, literal, select, tuple_

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import threads
from gateway.support.clock import NowUs, now_us
from gateway.support.paging import Place

BATCH_ROWS = 500
"""The size of a transaction that deletes rows: some milliseconds, since all writers of the database wait meanwhile."""

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

    def __init__(self, database: Database, clock: NowUs = now_us, *, gateway: str | None = None) -> None:
        self._database = database
        self.audit = AuditStore(database, clock)
        self.clock = clock
        self.gateway = gateway

    async def _all(self, kind: type[T], query: Select[Any]) -> Sequence[T]:
        return [mapped(kind, row) for row in await self._database.rows(query)]

    async def _one(self, kind: type[T], query: Select[Any]) -> T | None:
        found = await self._database.first(query)
        return None if found is None else mapped(kind, found)

    async def _has(self, column: ColumnElement[Any], *where: ColumnElement[bool]) -> bool:
        return bool(await self._database.rows(select(column).where(*where).limit(1)))

    async def _execute(self, change: Update | Delete) -> int:
        """Execute a statement in a transaction; return the number of rows that it changed."""
        return await self._database.transact(lambda connection: connection.execute(change).rowcount)

    async def _drain(self, table: Table, which: ColumnElement[bool], change: Update | Delete | None = None) -> int:
        """Delete rows, or change them so that they match no more; return how many.

        A reader finds them, and the writer changes a batch in each transaction, namely the rows that still match:
        another process may drain the same rows.
        """
        columns, removed = table.primary_key.columns, 0
        found, key = select(*columns).where(which).limit(BATCH_ROWS), tuple_(*columns)
        change = delete(table) if change is None else change
        before: Sequence[Row[Any]] = ()
        # The same batch again is one whose rows the writer does not see as the reader does.
        while (rows := await self._database.rows(found)) and rows != before:
            removed += await self._execute(change.where(which, key.in_([tuple(row) for row in rows])))
            before = rows
        return removed


def mapped(kind: type[T], row: Row[Any], **given: Any) -> T:
    """Return a dataclass with the values of a row's columns of the same names, and the `given` fields."""
    names: Mapping[str, object] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: getattr(row, name) for name in names if name not in given}, **given)


def with_thread(table: Table, *columns: Any) -> Select[Any]:
    """Select columns of a table, all unless given, and the name of each row's thread as `thread`."""
    query = select(*(columns or (table,)), threads.c.name.label("thread"))
    return query.join(threads, table.c.thread_id == threads.c.id)


def matching(wanted: Mapping[Any, object]) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter: each column has its value, or one of a tuple; an empty value matches all."""
    return [
        column.in_(value) if isinstance(value, tuple) else column == value for column, value in wanted.items() if value
    ]


def page_of(
    query: Select[Any], table: Table, before: Place | None, limit: int | None, column: str = "created_us"
) -> Select[Any]:
    """Return the query of a page, newest first; `before` is the time and the id of the previous page's last row."""
    if before is not None:
        query = query.where(tuple_(table.c[column], table.c.id) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(table.c[column].desc(), table.c.id.desc()).limit(limit)


def slice_of(rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], T], limit_chars: int) -> tuple[list[T], Any]:
    """Return the first rows, parsed: as many as fit the limit together, and at least one.

    So a reader's thread is soon free for others. Also returns the key of the last one if there are more rows. The key
    is a row's first column; its last one may be long.
    """
    parsed: list[T] = []
    chars, last = 0, None
    for row in rows:
        chars += len(row[-1])
        if parsed and chars > limit_chars:
            return parsed, last
        parsed.append(parse(row))
        last = row[0]
    return parsed, None
