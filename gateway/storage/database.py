"""The database: opening it, migrating it, and one writer that commits what many callers wait for in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import Engine, Executable, Row, Select, create_engine, event
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
# A locked, full or damaged database refuses every write. What else a driver says, or cannot take, is about one of them.
_ABOUT_THE_DATABASE = (DatabaseError, InterfaceError, NoConnection, OSError)
_ABOUT_A_WRITE = (IntegrityError, DataError, ProgrammingError, NotSupportedError)

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]


@dataclass
class _Pending:
    writes: Sequence[Write]
    done: asyncio.Future[None]


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
            engine = create_engine(url, hide_parameters=True)
        except (SQLAlchemyError, ImportError) as error:
            raise Misconfigured(f"database_url: {error}; sqlite:///FILE is the default") from error
        if engine.dialect.name == "sqlite":
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
        if self._closed:
            raise Unavailable("the gateway is stopping; ask again when it is back")
        pending = _Pending(writes, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(pending)
        await pending.done

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
            errors = await loop.run_in_executor(self._writer, self._commit, [pending.writes for pending in waiting])
            for pending, error in zip(waiting, errors, strict=True):
                _settle(pending, error)

    # --- what the threads do ---

    def _read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return take(connection.execute(query))
        except SQLAlchemyError as error:
            raise Unavailable(f"the database is locked, damaged or gone: {_said(error)}; try again later") from error

    def _commit(self, group: Sequence[Sequence[Write]]) -> Sequence[Exception | None]:
        """Commit a group in one transaction; return how each member of it ended."""
        try:
            with self._engine.begin() as connection:
                for writes in group:
                    for statement, parameters in writes:
                        connection.execute(statement, parameters)
        except Exception as error:
            if isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE):
                log.error("the database refuses writes", error=_said(error), writes=len(group))  # noqa: TRY400 - no statements
                reason = f"the database is locked, full or gone: {_said(error)}; try again later"
                return [Unavailable(reason) for _ in group]
            if len(group) == 1:
                return [error]
            # One bad write must not fail its neighbours: each gets a transaction of its own.
            return [error for writes in group for error in self._commit([writes])]
        return [None] * len(group)

    def _migrate(self) -> None:
        config = AlembicConfig()
        config.set_main_option("script_location", str(_MIGRATIONS))
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _shut_down(self) -> None:
        self._readers.shutdown()
        self._engine.dispose()


def _settle(pending: _Pending, error: Exception | None = None) -> None:
    """Tell a caller how its writes ended, unless it has gone away meanwhile."""
    if pending.done.done():
        return
    if error is None:
        pending.done.set_result(None)
    else:
        pending.done.set_exception(error)


def _said(error: Exception) -> str:
    """Return what the driver said, without the statement around it."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _set_pragmas(connection: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
