"""Queries that list: a tenant's threads with what is kept of them, and its runs. Pages go by a sort key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row, Table, cast, delete, func, insert, select, tuple_, update
from sqlalchemy import literal as bound

from gateway.storage.database import Database
from gateway.storage.entities import Run
from gateway.storage.restore_store import ThreadGoing
from gateway.storage.tables import RUNS_UNDER_WAY, messages, runs, thread_metadata, threads
from gateway.storage.thread_marks import is_visible
from gateway.support.clock import NowUs, now_us
from gateway.support.paging import Place

TASK_LISTED_CHARS = 1024
# A page of messages ends after this many characters, whatever their number.
PAGE_CHARS = 4 * 1024 * 1024
_RUN_COLUMNS = tuple(runs.c[name] for name in Run.__dataclass_fields__ if name not in ("thread", "task"))


@dataclass(frozen=True)
class ThreadRow:
    """A thread as it is listed; `run_id` is the run that is under way in it."""

    id: str
    name: str
    created_us: int
    run_id: str | None = None


@dataclass(frozen=True)
class MessageRow:
    """A message as it is stored: JSON."""

    position: int
    run_id: str
    message: str


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list; an empty field matches all. Times are UTC microseconds since 1970, `until_us` excluded."""

    thread: str = ""
    statuses: tuple[str, ...] = ()
    agent: str = ""
    started_by: str = ""
    since_us: int | None = None
    until_us: int | None = None


class ThreadStore:
    """Typed access to lists; each query names the tenant it serves."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def page(self, tenant: str, *, prefix: str, before: Place | None, limit: int) -> Sequence[ThreadRow]:
        """Return threads, the newest first."""
        conditions = [threads.c.tenant == tenant, is_visible()]
        if prefix:
            # Not LIKE: in SQLite that passes over the case of letters.
            conditions.append(func.substr(threads.c.name, 1, len(prefix)) == prefix)
        if before is not None:
            conditions.append(_older(threads, "created_us", before))
        order = (threads.c.created_us.desc(), threads.c.id.desc())
        query = select(threads.c.id, threads.c.name, threads.c.created_us).where(*conditions)
        found = await self._database.rows(query.order_by(*order).limit(limit))
        busy = await self._under_way([row.id for row in found])
        return [ThreadRow(row.id, row.name, row.created_us, busy.get(row.id)) for row in found]

    async def get(self, tenant: str, name: str) -> ThreadRow | None:
        """Return a thread; it is not made."""
        query = select(threads.c.id, threads.c.name, threads.c.created_us).where(
            threads.c.tenant == tenant, threads.c.name == name, is_visible()
        )
        found = await self._database.rows(query)
        if not found:
            return None
        busy = await self._under_way([found[0].id])
        return ThreadRow(found[0].id, found[0].name, found[0].created_us, busy.get(found[0].id))

    async def metadata(self, thread_id: str, *, limit_bytes: int) -> dict[str, str] | None:
        """Return a thread's metadata: JSON texts by their keys.

        None where they are more than `limit_bytes`, which only those are that were kept before there was a limit.
        """
        columns = thread_metadata.c
        query = select(columns.key, columns.value).where(columns.thread_id == thread_id).order_by(columns.key)

        def take(rows: Any) -> dict[str, str] | None:
            found: dict[str, str] = {}
            in_all = 0
            for row in rows:
                in_all += entry_bytes(row.key, row.value)
                if in_all > limit_bytes:
                    return None
                found[row.key] = row.value
            return found

        return await self._database.read(query, take)

    async def message_count(self, thread_id: str) -> int:
        """Return how many messages a thread has."""
        query = select(func.count().label("messages")).where(messages.c.thread_id == thread_id)
        return int((await self._database.rows(query))[0].messages)

    async def messages(self, thread_id: str, *, after: int, limit: int) -> tuple[Sequence[MessageRow], bool]:
        """Return messages past a position, the oldest first, and whether there are more.

        They are `limit` at most, or fewer, but one, where they are large.
        """
        columns = messages.c
        query = (
            select(columns.position, columns.run_id, columns.message)
            .where(columns.thread_id == thread_id, columns.position > after)
            .order_by(columns.position)
            .limit(limit + 1)
        )

        def take(rows: Any) -> tuple[list[MessageRow], bool]:
            page: list[MessageRow] = []
            chars = 0
            for row in rows:
                chars += len(row.message)
                if len(page) == limit or (page and chars > PAGE_CHARS):
                    return page, True
                page.append(MessageRow(row.position, row.run_id, row.message))
            return page, False

        return await self._database.read(query, take)

    async def change_metadata(
        self,
        thread_id: str,
        changed: Mapping[str, str],
        removed: Sequence[str],
        *,
        keys_limit: int,
        limit_bytes: int,
    ) -> str | None:
        """Set and remove entries, unless a run is under way in the thread: return that run then.

        None means that it is done. Raises MetadataFull for more keys or more bytes than a thread may have, ThreadGoing
        for one that is not there, or not yet.
        """
        columns = thread_metadata.c
        gone = {*changed, *removed}
        values = [
            {"thread_id": thread_id, "key": key, "value": value, "updated_us": self._clock()}
            for key, value in changed.items()
        ]

        def work(connection: Connection) -> str | None:
            seen = select(threads.c.id).where(threads.c.id == thread_id, is_visible()).with_for_update()
            if connection.execute(seen).first() is None:
                raise ThreadGoing
            busy = connection.execute(_under_way_in([thread_id])).first()
            if busy is not None:
                return str(busy.id)
            if gone:
                connection.execute(update(threads).where(threads.c.id == thread_id).values(used_us=self._clock()))
                connection.execute(delete(thread_metadata).where(columns.thread_id == thread_id, columns.key.in_(gone)))
            count = select(func.count()).select_from(thread_metadata).where(columns.thread_id == thread_id)
            if (connection.execute(count).scalar() or 0) + len(values) > keys_limit:
                raise MetadataFull(f"{keys_limit:,} keys are kept of a thread")
            if values:
                connection.execute(insert(thread_metadata), values)
                bytes_ = _bytes_of(connection, columns.key) + _bytes_of(connection, columns.value)
                in_all = select(func.sum(bytes_)).where(columns.thread_id == thread_id)
                if (connection.execute(in_all).scalar() or 0) > limit_bytes:
                    raise MetadataFull(f"{limit_bytes:,} bytes of metadata, keys and values, are kept of a thread")
            return None

        return await self._database.transact(work)

    async def runs(self, tenant: str, wanted: RunFilter, *, before: Place | None, limit: int) -> Sequence[Run]:
        """Return runs, newest first, with long tasks cut."""
        conditions = [runs.c.tenant == tenant]
        conditions += [threads.c.name == wanted.thread] if wanted.thread else []
        conditions += [runs.c.status.in_(wanted.statuses)] if wanted.statuses else []
        conditions += [runs.c.agent == wanted.agent] if wanted.agent else []
        conditions += [runs.c.started_by == wanted.started_by] if wanted.started_by else []
        conditions += [runs.c.started_us >= wanted.since_us] if wanted.since_us is not None else []
        conditions += [runs.c.started_us < wanted.until_us] if wanted.until_us is not None else []
        conditions += [_older(runs, "started_us", before)] if before is not None else []
        task = func.substr(runs.c.task, 1, TASK_LISTED_CHARS).label("task")
        query = (
            select(*_RUN_COLUMNS, task, threads.c.name.label("thread"))
            .join(threads, runs.c.thread_id == threads.c.id)
            .where(*conditions)
            .order_by(runs.c.started_us.desc(), runs.c.id.desc())
            .limit(limit)
        )
        return [_run(row) for row in await self._database.rows(query)]

    async def _under_way(self, thread_ids: Sequence[str]) -> dict[str, str]:
        if not thread_ids:
            return {}
        return {row.thread_id: row.id for row in await self._database.rows(_under_way_in(thread_ids))}


class MetadataFull(Exception):
    """What was set is more than a thread keeps; the transaction is undone."""


def entry_bytes(key: str, text: str) -> int:
    """Return what an entry of the metadata counts: its key and its JSON text, in UTF-8."""
    return len(key.encode("utf-8", "surrogatepass")) + len(text.encode("utf-8", "surrogatepass"))


def _bytes_of(connection: Connection, column: Any) -> Any:
    is_sqlite = connection.dialect.name == "sqlite"
    return func.length(cast(column, LargeBinary)) if is_sqlite else func.octet_length(column)


def _under_way_in(thread_ids: Sequence[str]) -> Any:
    return select(runs.c.thread_id, runs.c.id).where(
        runs.c.thread_id.in_(thread_ids), runs.c.status.in_(RUNS_UNDER_WAY)
    )


def _older(table: Table, column: str, place: Place) -> Any:
    return tuple_(table.c[column], table.c.id) < tuple_(bound(place[0]), bound(place[1]))


def _run(row: Row[Any]) -> Run:
    return Run(**{name: getattr(row, name) for name in Run.__dataclass_fields__})
