"""The database: opening and migrating it, reading, and one writer that commits the writes of many callers at once.

Writers of all processes take turns, in SQLite by its lock and in PostgreSQL by an advisory lock: a writer that reads
first sees all earlier writes, and no two deadlock on each other's rows.

A lost connection costs nothing, unless it is lost during a commit: see gateway/storage/writer.py.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import Connection, Engine, Executable, Result, Row, Select, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from gateway.errors import Misconfigured, Unavailable
from gateway.storage.connecting import READERS, connect, driver_message
from gateway.storage.migration import NotMigrated, upgrade
from gateway.storage.prepared import Prepared
from gateway.storage.tables import settings
from gateway.storage.writer import TRIES, Writer, lost
from gateway.support.current_tenant import CURRENT_TENANT

# Concurrent reads: of one tenant, and of all calls together.
_SHARE, _OF_CALLS = READERS // 2, READERS - 1
# Rows of a streamed result that are fetched at a time.
_ROWS_AHEAD = 50
_OPENING_ADVICE = {
    "sqlite": "Is its directory there, writable and not full, and does no other program hold it?",
    "postgresql": "Is the server up, the database made, and may this user make tables in it?",
}

# A table is read, because SQLite does not access its file for a plain SELECT 1.
_ANY_ROW = select(settings.c.name).limit(1)
T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]
Ask = Callable[[Connection], Result[Any]]
Work = Callable[[Connection], T]
"""The work of one transaction, in the writer's thread. It may be rolled back and repeated: no side effects."""


class Readers:
    """The threads that read, shared fairly: a tenant's slow reads delay only its own.

    A tenant has at most a share of the threads at a time, and so have operators together. Calls together leave one
    thread to background reads, which need no share. Authentication reads in a thread of its own, so tenants' reads
    never delay it. Call `shut_down` in a thread that may wait for them.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._foremost = ThreadPoolExecutor(1, thread_name_prefix="database-foremost")
        self._of_calls = asyncio.Semaphore(_OF_CALLS)
        # Exists while there are readers or waiters.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, read: Callable[[], T], *, foremost: bool = False) -> T:
        """Return the result of `read`, called in a thread: in its own if `foremost`, else in the tenant's turn."""
        if foremost:
            return await asyncio.wrap_future(self._foremost.submit(read))
        whose = CURRENT_TENANT.get()
        if whose is None:
            return await asyncio.wrap_future(self._threads.submit(read))
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = asyncio.Semaphore(_SHARE)
        # First the tenant's own share: who waits for that keeps no other tenant from a thread.
        with contextlib.ExitStack() as places:
            for place in (share, self._of_calls):
                await place.acquire()
                places.callback(place.release)
            reading = self._threads.submit(read)
            try:
                return await asyncio.wrap_future(reading)
            finally:
                # The thread still works for a cancelled caller, and its places stay taken until it is done.
                if not reading.done():
                    reading.add_done_callback(_closing(places.pop_all(), asyncio.get_running_loop()))

    def shut_down(self) -> None:
        self._threads.shutdown()
        self._foremost.shutdown()


def _closing(places: contextlib.ExitStack, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
    def done(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no reader waits
            loop.call_soon_threadsafe(places.close)

    return done


class ConstraintViolated(Exception):
    """A write that a constraint or a trigger refused, with the database's message."""


class Database:
    """An open database. Each read takes a connection; `write` returns once the writes are durable.

    The driver is synchronous and has its own threads: crossing into a thread once a transaction costs a fraction of an
    asynchronous driver's crossing per statement, and no driver thread can outlive the event loop that opened it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers = Readers()
        self._writer = Writer(engine)
        # For `look`, on the event loop.
        self._looking: Connection | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the database, migrate it to the newest revision, and start the writer."""
        engine = connect(url)
        database = cls(engine)
        try:
            await database._readers.run(partial(upgrade, engine))
        except NotMigrated as error:
            await database.close()
            raise Misconfigured(f"the database {engine.url.render_as_string()} cannot be used: {error}") from error
        except (SQLAlchemyError, OSError) as error:
            await database.close()
            raise Misconfigured(
                f"the database {engine.url.render_as_string()} does not open: {driver_message(error)}. "
                f"{_OPENING_ADVICE[engine.dialect.name]}"
            ) from error
        return database

    @classmethod
    async def as_it_is(cls, url: str) -> Self:
        """Open without migrating or checking the schema, to read a database that may have been tampered with."""
        return cls(connect(url))

    def listen(self, wrote: Callable[[int, float], None]) -> None:
        """Call `wrote` after each transaction with its number of writes and its duration in seconds."""
        self._writer.wrote = wrote

    async def close(self) -> None:
        self._closed = True
        await self._writer.close()
        # Not in the loop's pool: closing must not wait for unrelated work in its threads.
        ending = ThreadPoolExecutor(1, thread_name_prefix="database-end")
        await asyncio.get_running_loop().run_in_executor(ending, self._shut_down)
        ending.shutdown()

    async def rows(self, query: Select[Any], *, foremost: bool = False) -> Sequence[Row[Any]]:
        """Return the rows of a query. A `foremost` query, short and needed by every call, waits for no other."""
        return await self.read(query, list, foremost=foremost)

    async def first(self, query: Select[Any], *, foremost: bool = False) -> Row[Any] | None:
        found = await self.rows(query, foremost=foremost)
        return found[0] if found else None

    async def scalar(self, query: Select[Any]) -> Any:
        """Return the first column of the first row, or None."""
        found = await self.first(query)
        return None if found is None else found[0]

    async def read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T], *, foremost: bool = False) -> T:
        """Return `take(rows)`, called in a reader's thread; rows that `take` does not consume are not read."""
        self._check_open()
        read = partial(self._read, lambda connection: connection.execute(query), take)
        return await self._readers.run(read, foremost=foremost)

    async def look(
        self, statement: Prepared, parameters: Mapping[str, Any], *, foremost: bool = False
    ) -> Sequence[Row[Any]]:
        """Return the few rows of a lookup by an index.

        SQLite is asked on the event loop: its answer takes a fraction of a thread switch. A lookup that would have to
        wait runs in a thread.
        """
        self._check_open()
        if self._engine.dialect.name == "sqlite":
            with contextlib.suppress(SQLAlchemyError, sqlite3.Error):
                if self._looking is None:
                    self._looking = self._engine.connect()
                    self._looking.exec_driver_sql("PRAGMA busy_timeout=0")
                return statement.look(self._looking, parameters)
        return await self.found(statement, parameters, foremost=foremost)

    async def found(
        self, statement: Prepared, parameters: Mapping[str, Any], *, foremost: bool = False
    ) -> Sequence[Row[Any]]:
        """Return the rows of a prepared query that may take long."""
        self._check_open()
        read = partial(self._read, partial(statement.ask, parameters=parameters), list)
        return await self._readers.run(read, foremost=foremost)

    async def write(self, *writes: Write) -> None:
        """Execute statements in one transaction. Raises ConstraintViolated and Unavailable."""

        def work(connection: Connection) -> None:
            for statement, parameters in writes:
                connection.execute(statement, parameters)

        await self.transact(work, apart=False)

    async def transact(self, work: Work[T], *, apart: bool = True, short: bool = False) -> T:
        """Run work that reads and writes in one transaction, with no other writer in between; return its result.

        An exception rolls it back and is raised here; ConstraintViolated if a constraint refuses a row. Without `apart`
        there is no savepoint, and an exception makes everything in the shared transaction run again. `short` work is of
        a few rows by their keys, for which the event loop may wait.
        """
        self._check_open()
        try:
            done: T = await self._writer.done(work, apart=apart, short=short)
        except IntegrityError as error:
            raise ConstraintViolated(driver_message(error)) from error
        return done

    async def truncate_log(self) -> bool:
        """Empty SQLite's write-ahead log, which still has deleted data; False while it is being read.

        PostgreSQL's own log, and rows before VACUUM, are up to the operator: docs/storage.md.
        """
        if self._engine.dialect.name != "sqlite":
            return True
        return await self._readers.run(self._truncate)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the gateway is shutting down: try again when it is back")

    # --- what the threads do ---

    def _read(self, ask: Ask, take: Callable[[Iterable[Row[Any]]], T]) -> T:
        # If all rows are wanted, PostgreSQL is asked once, without a transaction; otherwise rows are streamed.
        options: dict[str, Any] = {"stream_results": True, "max_row_buffer": _ROWS_AHEAD}
        if take is list:
            options = {"isolation_level": "AUTOCOMMIT"}
        for try_ in range(1, TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    if connection.dialect.name != "sqlite":
                        connection = connection.execution_options(**options)  # noqa: PLW2901 - the same one
                    with ask(connection) as found:
                        return take(found)
            except SQLAlchemyError as error:
                if lost(error) and try_ < TRIES:
                    continue
                reason = f"the database is locked, damaged or gone: {driver_message(error)}; try again later"
                raise Unavailable(reason) from error
        raise AssertionError("unreachable")

    def _truncate(self) -> bool:
        with self._engine.connect() as connection:
            return not connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()

    def _shut_down(self) -> None:
        if self._looking is not None:
            self._looking.close()
        self._readers.shut_down()
        self._engine.dispose()


@dataclass(frozen=True)
class DatabaseIdentity:
    """`id` differs between a database and a copy, unless that is of a whole server; `shown` is its location."""

    id: str
    shown: str


async def identity_of(database: Database) -> DatabaseIdentity:
    """Return the identity of an open database."""
    return await database.transact(_identity)


def _identity(connection: Connection) -> DatabaseIdentity:
    if connection.dialect.name == "sqlite":
        path = str(connection.exec_driver_sql("PRAGMA database_list").one()[2])
        if not path:
            return DatabaseIdentity(f"memory:{os.getpid()}", "a database in memory")
        found = Path(path).stat()
        return DatabaseIdentity(f"file:{found.st_dev}:{found.st_ino}", path)
    name, oid = connection.exec_driver_sql(
        "SELECT datname, oid::bigint FROM pg_database WHERE datname = current_database()"
    ).one()
    # Every role may call it, unless the server's operator has revoked that.
    allowed = connection.exec_driver_sql("SELECT has_function_privilege('pg_control_system()', 'execute')").scalar()
    server = connection.exec_driver_sql("SELECT system_identifier FROM pg_control_system()").scalar() if allowed else 0
    return DatabaseIdentity(f"server:{server}:{oid}", f"PostgreSQL database {name!r} of server {server or 'unknown'}")


# --- the settings that all gateways of a database share, as values by name ---


async def agreed(database: Database, name: str, *, offered: str) -> str:
    """Return the value of a name; if it has none, it becomes the offered one."""
    return await changed(database, name, lambda found: offered if found is None else found)


async def changed(database: Database, name: str, change: Callable[[str | None], str]) -> str:
    """Replace the value of a name by `change(value)`, where None is no value; return the new value."""

    def work(connection: Connection) -> str:
        found = connection.execute(select(settings.c.value).where(settings.c.name == name)).scalar_one_or_none()
        value = change(found)
        if found is None:
            connection.execute(insert(settings).values(name=name, value=value))
        elif value != found:
            connection.execute(update(settings).where(settings.c.name == name).values(value=value))
        return value

    try:
        return await database.transact(work)
    except ConstraintViolated:  # another gateway was faster
        return await database.transact(work)


async def value_of(database: Database, name: str) -> str | None:
    """Return the value of a name; None if it has none."""
    value: str | None = await database.scalar(select(settings.c.value).where(settings.c.name == name))
    return value


async def sign_of_life(database: Database) -> None:
    """Return once the database answers; Unavailable if it does not."""
    # Like authentication, it does not wait for tenants' reads.
    await database.rows(_ANY_ROW, foremost=True)
