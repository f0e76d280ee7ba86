"""The database: opening it, migrating it, and one writer that commits what many callers wait for in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, Executable, Row, Select, create_engine, event, make_url
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoConnection

from gateway.errors import Misconfigured, Unavailable

log = structlog.get_logger(__name__)
_MIGRATIONS = Path(__file__).parent / "migrations"
# One transaction takes at most this many callers' writes, so that a burst cannot hold the database for long.
_GROUP_LIMIT = 128
_READERS = 4
# How long one process waits for another's transaction on the same SQLite file: the CLI writes while gateways run.
_BUSY_S = 10.0
_WAL_RETRY_S = 0.05
# A locked, full or damaged database refuses every write. What else a driver says, or cannot take, is about one of them.
_ABOUT_THE_DATABASE = (DatabaseError, InterfaceError, NoConnection, OSError)
_ABOUT_A_WRITE = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
# What PostgreSQL says of a transaction that stood in another's way: each goes through when it is made again, alone.
_IN_EACH_OTHERS_WAY = frozenset({"40001", "40P01"})

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]
Work = Callable[[Connection], T]
"""What is done in one transaction, in the writer's thread. It may be rolled back and done again: no side effects."""


@dataclass
class _Pending:
    work: Work[Any]
    done: asyncio.Future[Any]
    # Whether what it raises undoes its own part of the group's transaction only.
    apart: bool = True


@dataclass(frozen=True)
class _Ended:
    """How a caller's work ended."""

    result: Any = None
    error: Exception | None = None


class Database:
    """An open database. Reads take a connection each; `write` returns when what it was given is durable.

    The driver is synchronous and has threads of its own: one crossing a transaction costs a fraction of an asynchronous
    driver's one crossing a statement, and no driver's thread can outlive the event loop that opened it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="database-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="database-writer")
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open, migrate to the newest revision, and start the writer."""
        try:
            # Parameters hold what tenants wrote: no message of an error may.
            parsed = make_url(url)
            sqlite = parsed.get_backend_name() == "sqlite"
            if sqlite and "timeout" not in parsed.query:
                parsed = parsed.update_query_dict({"timeout": str(_BUSY_S)})
            engine = create_engine(parsed, hide_parameters=True)
        except (SQLAlchemyError, ImportError) as error:
            raise Misconfigured(f"database_url: {error}; sqlite:///FILE is the default") from error
        if sqlite:
            event.listen(engine, "connect", _set_pragmas)
        database = cls(engine)
        try:
            await asyncio.get_running_loop().run_in_executor(database._writer, database._migrate)
        except (SQLAlchemyError, OSError, CommandError) as error:
            await database.close()
            raise Misconfigured(
                f"the database {engine.url.render_as_string()} does not open: {_said(error)}. Is its directory there, "
                "writable and not full, and does no other program hold it?"
            ) from error
        database._writing = asyncio.create_task(database._write_groups(), name="database writer")
        return database

    async def close(self) -> None:
        """Finish the writes that callers wait for, then close."""
        self._closed = True
        if self._writing is not None:
            self._queue.put_nowait(None)
            await self._writing
        # Not in the loop's pool: its threads may be busy with others' work, and stopping must not wait for that.
        await asyncio.get_running_loop().run_in_executor(self._writer, self._shut_down)
        self._writer.shutdown()

    async def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """Return what a query finds; `Unavailable` when the database does not answer it."""
        return await self.read(query, list)

    async def read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T]) -> T:
        """Return what `take`, in a reader's thread, makes of the rows; those that it does not ask for are not read."""
        if self._closed:
            raise Unavailable("the gateway is stopping; ask again when it is back")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, query, take)

    async def write(self, *writes: Write) -> None:
        """Execute statements in one transaction; all of them or none."""
        await self._queued(partial(_execute, writes=writes), apart=False)

    async def transact(self, work: Work[T]) -> T:
        """Do what reads and writes in one transaction that no other writer comes between; return what it returns.

        With PostgreSQL it must lock the rows that it decides by. What it raises undoes what it did, and is raised here.
        """
        done: T = await self._queued(work, apart=True)
        return done

    async def _queued(self, work: Work[Any], *, apart: bool) -> Any:
        if self._closed:
            raise Unavailable("the gateway is stopping; ask again when it is back")
        pending = _Pending(work, asyncio.get_running_loop().create_future(), apart)
        self._queue.put_nowait(pending)
        return await pending.done

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        open_ = True
        while open_:
            group = [await self._queue.get()]
            while not self._queue.empty() and len(group) < _GROUP_LIMIT:
                group.append(self._queue.get_nowait())
            open_ = None not in group
            waiting = [pending for pending in group if pending is not None]
            if not waiting:
                continue
            ended = await loop.run_in_executor(self._writer, self._commit, waiting)
            for pending, how in zip(waiting, ended, strict=True):
                _settle(pending, how)

    # --- what the threads do ---

    def _read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return take(connection.execute(query))
        except SQLAlchemyError as error:
            raise Unavailable(f"the database is locked, damaged or gone: {_said(error)}; try again later") from error

    def _commit(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        """Commit a group in one transaction; return how each member of it ended."""
        try:
            with self._engine.begin() as connection:
                self._begin(connection)
                return [_ended(connection, pending) for pending in group]
        except Exception as error:
            about_all = isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE)
            if about_all and not (len(group) > 1 and _in_each_others_way(error)):
                log.error("the database refuses writes", error=_said(error), writes=len(group))  # noqa: TRY400 - no statements
                reason = f"the database is locked, full or gone: {_said(error)}; try again later"
                return [_Ended(error=Unavailable(reason)) for _ in group]
            if len(group) == 1:
                return [_Ended(error=error)]
            # One bad write must not fail its neighbours: each gets a transaction of its own.
            return [ended for pending in group for ended in self._commit([pending])]

    def _begin(self, connection: Connection) -> None:
        """Begin as a writer: in SQLite, what reads before it writes must have the write lock from the start."""
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _migrate(self) -> None:
        config = AlembicConfig()
        config.set_main_option("script_location", str(_MIGRATIONS))
        with self._engine.begin() as connection:
            self._begin(connection)  # or two processes would migrate a new file at once
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _shut_down(self) -> None:
        self._readers.shutdown()
        self._engine.dispose()


def _execute(connection: Connection, *, writes: Sequence[Write]) -> None:
    for statement, parameters in writes:
        connection.execute(statement, parameters)


def _ended(connection: Connection, pending: _Pending) -> _Ended:
    """Do one member of a group. Raises what fails the whole transaction."""
    if not pending.apart:
        return _Ended(pending.work(connection))
    try:
        with connection.begin_nested():
            return _Ended(pending.work(connection))
    except Exception as error:
        if isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE):
            raise
        return _Ended(error=error)


def _in_each_others_way(error: Exception) -> bool:
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _IN_EACH_OTHERS_WAY


def _settle(pending: _Pending, ended: _Ended) -> None:
    """Tell a caller how its work ended, unless it has gone away meanwhile."""
    if pending.done.done():
        return
    if ended.error is None:
        pending.done.set_result(ended.result)
    else:
        pending.done.set_exception(ended.error)


def _said(error: Exception) -> str:
    """Return what the driver said, without the statement around it."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _set_pragmas(connection: Any, _record: object) -> None:
    _make_wal(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _make_wal(connection: Any) -> None:
    """Set the journal's mode. SQLite does not wait for others with this one, so that we do."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return
