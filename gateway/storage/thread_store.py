"""Lists: a tenant's threads with their messages and metadata, and its runs; marks of threads that are closed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, cast, delete, func, insert, or_, select, update

from gateway.errors import InvalidArgument, NotFound, ThreadBusy
from gateway.storage.entities import Run, Thread
from gateway.storage.queries import Queries, mapped, matching, page_of, slice_of, transaction, with_thread
from gateway.storage.run_writes import metadata_rows
from gateway.storage.tables import RUNS_UNDER_WAY, messages, runs, thread_metadata, threads
from gateway.support.paging import Place

TASK_LISTED_CHARS = 1024
# A page of messages ends after this many characters, whatever their number.
PAGE_CHARS = 4 * 1024 * 1024
# Marks in threads.deletion besides the id of a deletion: nothing begins in a marked thread.
RESTORING = "rst_"
"""The mark's prefix for a thread whose files are being replaced. It outlives its gateway: the files are unknown."""
FORKING = "frk_"
"""The mark's prefix for a fork in progress, which is invisible, and removed if its gateway dies."""
_RUN_COLUMNS = tuple(runs.c[name] for name in Run.__dataclass_fields__ if name not in ("thread", "task"))


@dataclass(frozen=True)
class ThreadRow:
    """A thread as it is listed; `run_id` is the run under way in it."""

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


class ThreadStore(Queries):
    """Typed access to lists; each query takes the tenant."""

    async def page(self, tenant: str, *, prefix: str, before: Place | None, limit: int) -> Sequence[ThreadRow]:
        query = select(threads).where(threads.c.tenant == tenant, is_visible())
        if prefix:
            # Not LIKE, which ignores case in SQLite.
            query = query.where(func.substr(threads.c.name, 1, len(prefix)) == prefix)
        return await self._found(page_of(query, threads, before, limit))

    async def get(self, tenant: str, name: str) -> ThreadRow | None:
        found = await self._found(
            select(threads).where(threads.c.tenant == tenant, threads.c.name == name, is_visible())
        )
        return found[0] if found else None

    async def known(self, tenant: str, name: str) -> ThreadRow:
        """Return a thread; NotFound also for another tenant's."""
        row = await self.get(tenant, name)
        if row is None:
            raise no_thread(name)
        return row

    async def metadata(self, thread_id: str, *, limit_bytes: int) -> dict[str, str] | None:
        """Return a thread's metadata, JSON texts by key; None if it exceeds a limit that it may be older than."""
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
        return int(await self._database.scalar(select(func.count()).where(messages.c.thread_id == thread_id)))

    async def messages(self, thread_id: str, *, after: int, limit: int) -> tuple[Sequence[MessageRow], bool]:
        """Return at most `limit` messages past a position, fewer if they are large, and whether there are more."""
        columns = messages.c
        query = (
            select(columns.position, columns.run_id, columns.message)
            .where(columns.thread_id == thread_id, columns.position > after)
            .order_by(columns.position)
            .limit(limit + 1)
        )

        def take(rows: Any) -> tuple[list[MessageRow], bool]:
            page, more = slice_of(rows, partial(mapped, MessageRow), PAGE_CHARS)
            return page[:limit], more is not None or len(page) > limit

        return await self._database.read(query, take)

    @transaction
    def change_metadata(
        self,
        connection: Connection,
        thread: Thread,
        changed: Mapping[str, str],
        removed: Sequence[str],
        *,
        keys_limit: int,
        limit_bytes: int,
    ) -> None:
        """Set and remove entries of a thread without a run under way.

        Raises InvalidArgument for more keys or bytes than a thread may have, ThreadBusy.
        """
        columns, thread_id = thread_metadata.c, thread.id
        gone = {*changed, *removed}
        values = metadata_rows(thread_id, changed, self.clock())
        seen = select(threads.c.id).where(threads.c.id == thread_id, is_visible()).with_for_update()
        if connection.execute(seen).first() is None:
            raise ThreadBusy(f"thread {thread.name[:64]!r} was just deleted, or is being created as a fork: try again")
        if (run := connection.execute(_under_way_in([thread_id])).first()) is not None:
            raise busy_with(thread.name, run.id)
        if gone:
            connection.execute(update(threads).where(threads.c.id == thread_id).values(used_us=self.clock()))
            connection.execute(delete(thread_metadata).where(columns.thread_id == thread_id, columns.key.in_(gone)))
        count = select(func.count()).select_from(thread_metadata).where(columns.thread_id == thread_id)
        if (connection.execute(count).scalar() or 0) + len(values) > keys_limit:
            raise InvalidArgument(f"set: a thread can have at most {keys_limit:,} metadata keys; remove some first")
        if values:
            connection.execute(insert(thread_metadata), values)
            bytes_ = _bytes_of(connection, columns.key) + _bytes_of(connection, columns.value)
            in_all = select(func.sum(bytes_)).where(columns.thread_id == thread_id)
            if (connection.execute(in_all).scalar() or 0) > limit_bytes:
                raise InvalidArgument(
                    f"set: a thread can have at most {limit_bytes:,} bytes of metadata, keys and values together; "
                    "remove some first"
                )

    async def runs(self, tenant: str, wanted: RunFilter, *, before: Place | None, limit: int) -> Sequence[Run]:
        """Return runs, newest first, with long tasks cut."""
        names = {runs.c.status: wanted.statuses, runs.c.agent: wanted.agent, runs.c.started_by: wanted.started_by}
        conditions = [runs.c.tenant == tenant, *matching({threads.c.name: wanted.thread, **names})]
        conditions += [runs.c.started_us >= wanted.since_us] if wanted.since_us is not None else []
        conditions += [runs.c.started_us < wanted.until_us] if wanted.until_us is not None else []
        task = func.substr(runs.c.task, 1, TASK_LISTED_CHARS).label("task")
        query = with_thread(runs, *_RUN_COLUMNS, task).where(*conditions)
        return await self._all(Run, page_of(query, runs, before, limit, "started_us"))

    async def _found(self, query: Select[Any]) -> Sequence[ThreadRow]:
        found = await self._database.rows(query)
        under_way = await self._database.rows(_under_way_in([row.id for row in found])) if found else ()
        busy = {row.thread_id: row.id for row in under_way}
        return [mapped(ThreadRow, row, run_id=busy.get(row.id)) for row in found]


def entry_bytes(key: str, text: str) -> int:
    """Return the size of a metadata entry: its key and its JSON text, in UTF-8."""
    return len(key.encode("utf-8", "surrogatepass")) + len(text.encode("utf-8", "surrogatepass"))


def _bytes_of(connection: Connection, column: Any) -> Any:
    is_sqlite = connection.dialect.name == "sqlite"
    return func.length(cast(column, LargeBinary)) if is_sqlite else func.octet_length(column)


def _under_way_in(thread_ids: Sequence[str]) -> Any:
    return select(runs.c.thread_id, runs.c.id).where(
        runs.c.thread_id.in_(thread_ids), runs.c.status.in_(RUNS_UNDER_WAY)
    )


def no_thread(name: str) -> NotFound:
    """Return the error for an unknown thread."""
    return NotFound(f"thread {name[:64]!r} not found: `airlock thread list` lists the threads")


def busy_with(name: str, run_id: str) -> ThreadBusy:
    """Return the error for a thread with a run under way."""
    return ThreadBusy(f"thread {name!r} is busy with run {run_id}: wait for it or cancel it", run_id=run_id)


def going(name: str) -> ThreadBusy:
    """Return the error for a thread that is gone, being deleted or being restored."""
    return ThreadBusy(
        f"thread {name[:64]!r} was being deleted or restored: use another thread, try again, or repeat a restore that "
        "was interrupted"
    )


def lock_thread(connection: Connection, thread_id: str, name: str) -> str | None:
    """Lock a thread's row and return the mark of a restore, if any; ThreadBusy if it is gone, or is being deleted."""
    query = select(threads.c.deletion).where(threads.c.id == thread_id).with_for_update()
    found = connection.execute(query).first()
    if found is None or (found.deletion is not None and not found.deletion.startswith(RESTORING)):
        raise going(name)
    mark: str | None = found.deletion
    return mark


def is_there() -> ColumnElement[bool]:
    """Return the condition for threads that are neither forks in progress nor being deleted."""
    return or_(threads.c.deletion.is_(None), threads.c.deletion.startswith(RESTORING, autoescape=True))


def is_visible() -> ColumnElement[bool]:
    """Return the condition for threads that callers can see."""
    return or_(threads.c.deletion.is_(None), ~threads.c.deletion.startswith(FORKING, autoescape=True))
