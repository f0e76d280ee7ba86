"""The database: opening it, migrating it, and one writer that commits what many callers wait for in one transaction.

Writers of all processes take turns, in SQLite by its lock and in PostgreSQL by one of ours: whoever reads before it
writes sees what all others wrote before, and no two wait for each other's rows in a circle.

A connection that is lost costs nothing, but for one that is lost in the midst of a commit: gateway/storage/writer.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Executable, Result, Row, Select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from gateway.errors import Misconfigured, Unavailable
from gateway.storage.connecting import connect, said_by_driver
from gateway.storage.migration import NotMigrated, upgrade
from gateway.storage.prepared import Prepared
from gateway.storage.readers import Readers
from gateway.storage.writer import TRIES, Writer, lost

# Rows of a long answer that are fetched at once, where not all of them may be wanted.
_ROWS_AHEAD = 50
_HOW_TO_MEND = {
    "sqlite": "Is its directory there, writable and not full, and does no other program hold it?",
    "postgresql": "Is the server up, the database made, and may this user make tables in it?",
}

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]
Work = Callable[[Connection], T]
"""What is done in one transaction, in the writer's thread. It may be rolled back and done again: no side effects."""


class ConstraintViolated(Exception):
    """A write that a constraint or a trigger of the tables refuses, and how the database says so."""


class Database:
    """An open database. Reads take a connection each; `write` returns when what it was given is durable.

    The driver is synchronous and has threads of its own: one crossing a transaction costs a fraction of an asynchronous
    driver's one crossing a statement, and no driver's thread can outlive the event loop that opened it.
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
        """Open, migrate to the newest revision, and start the writer."""
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
                f"the database {engine.url.render_as_string()} does not open: {said_by_driver(error)}. "
                f"{_HOW_TO_MEND[engine.dialect.name]}"
            ) from error
        return database

    @classmethod
    async def as_it_is(cls, url: str) -> Self:
        """Open without migrating or checking the schema, to read from what somebody may have tampered with."""
        return cls(connect(url))

    def listen(self, wrote: Callable[[int, float], None]) -> None:
        """Have each transaction told of: how many writes it took, and how long, in seconds."""
        self._writer.wrote = wrote

    async def close(self) -> None:
        """Finish the writes that callers wait for, then close."""
        self._closed = True
        await self._writer.close()
        # Not in the loop's pool: its threads may be busy with others' work, and stopping must not wait for that.
        ending = ThreadPoolExecutor(1, thread_name_prefix="database-end")
        await asyncio.get_running_loop().run_in_executor(ending, self._shut_down)
        ending.shutdown()

    async def rows(self, query: Select[Any], *, foremost: bool = False) -> Sequence[Row[Any]]:
        """Return what a query finds; `Unavailable` when the database does not answer it.

        One that is `foremost`, a short one that every call needs, waits for none that is not.
        """
        return await self.read(query, list, foremost=foremost)

    async def read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T], *, foremost: bool = False) -> T:
        """Return what `take`, in a reader's thread, makes of the rows; those that it does not ask for are not read."""
        if self._closed:
            raise Unavailable("the gateway is shutting down: try again when it is back")
        asked = partial(self._read, lambda connection: connection.execute(query), take)
        return await self._readers.run(asked, foremost=foremost)

    async def look(self, statement: Prepared, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Return the few rows that a look-up by an index finds; as `rows` otherwise.

        SQLite is asked here and now: its answer takes a fraction of what a thread's turn does. One that would have to
        wait is asked in a thread.
        """
        if self._closed:
            raise Unavailable("the gateway is shutting down: try again when it is back")
        if self._engine.dialect.name == "sqlite":
            with contextlib.suppress(SQLAlchemyError, sqlite3.Error):
                return self._look_at_once(statement, parameters)
        return await self.found(statement, parameters)

    async def found(self, statement: Prepared, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Return what a prepared query finds that may take its time; as `rows` otherwise."""
        if self._closed:
            raise Unavailable("the gateway is shutting down: try again when it is back")
        asked = partial(self._read, partial(statement.execute, parameters=parameters), list)
        return await self._readers.run(asked)

    async def write(self, *writes: Write) -> None:
        """Execute statements in one transaction; all of them or none. Raises ConstraintViolated, and Unavailable."""
        await self._queued(partial(_execute, writes=writes), apart=False)

    async def transact(self, work: Work[T], *, apart: bool = True) -> T:
        """Do what reads and writes in one transaction that no other writer comes between; return what it returns.

        What it raises undoes what it did, and is raised here; ConstraintViolated where a constraint refuses a row.
        Not `apart` it costs no savepoint; when it raises, all that shares its transaction is done again.
        """
        done: T = await self._queued(work, apart=apart)
        return done

    async def truncate_log(self) -> bool:
        """Empty SQLite's write-ahead log, which has what was deleted yet; False when somebody was reading it.

        PostgreSQL's own log, and what VACUUM has not come to, are the operator's: docs/storage.md.
        """
        if self._engine.dialect.name != "sqlite":
            return True
        return await self._readers.run(self._truncate)

    async def _queued(self, work: Work[Any], *, apart: bool) -> Any:
        if self._closed:
            raise Unavailable("the gateway is shutting down: try again when it is back")
        try:
            return await self._writer.done(work, apart=apart)
        except IntegrityError as error:
            raise ConstraintViolated(said_by_driver(error)) from error

    def _look_at_once(self, statement: Prepared, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        if self._looking is None:
            self._looking = self._engine.connect()
            self._looking.exec_driver_sql("PRAGMA busy_timeout=0")
        return statement.look(self._looking, parameters)

    # --- what the threads do ---

    def _read(self, ask: Callable[[Connection], Result[Any]], take: Callable[[Iterable[Row[Any]]], T]) -> T:
        # Where all rows are wanted PostgreSQL is asked once, without a transaction; else they come as they are taken.
        all_ = take is list
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if all_ else {"stream_results": True}
        if not all_:
            options["max_row_buffer"] = _ROWS_AHEAD
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
                reason = f"the database is locked, damaged or gone: {said_by_driver(error)}; try again later"
                raise Unavailable(reason) from error
        raise AssertionError("unreachable")

    def _truncate(self) -> bool:
        with self._engine.connect() as connection:
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        return not busy

    def _shut_down(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.close()
        self._readers.shut_down()
        self._engine.dispose()


def _execute(connection: Connection, *, writes: Sequence[Write]) -> None:
    for statement, parameters in writes:
        connection.execute(statement, parameters)
