"""The database: opening it, migrating it, and one writer that commits what many callers wait for in one transaction.

Writers of all processes take turns, in SQLite by its lock and in PostgreSQL by one of ours: whoever reads before it
writes sees what all others wrote before, and no two wait for each other's rows in a circle.

A connection that is lost before the commit costs nothing: the transaction is made again. One that is lost while the
commit is under way leaves open whether it was done. It is not done again; who waits for it is told so, and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import structlog
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, Executable, Row, Select
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoConnection

from gateway.errors import Misconfigured, Unavailable
from gateway.storage.connecting import READERS, begin_writing, connect, said_by_driver
from gateway.storage.migration import upgrade

log = structlog.get_logger(__name__)
# One transaction takes at most this many callers' writes, so that a burst cannot hold the database for long.
_GROUP_LIMIT = 128
# A connection may have been lost long before it is used; the one made then is new, or nobody answers.
_TRIES = 3
# Rows of a long answer that are fetched at once, where not all of them may be wanted.
_ROWS_AHEAD = 50
# A locked, full or damaged database refuses every write. What else a driver says, or cannot take, is about one of them.
_ABOUT_THE_DATABASE = (DatabaseError, InterfaceError, NoConnection, OSError)
_ABOUT_A_WRITE = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
# What PostgreSQL says of a transaction that stood in another's way: each goes through when it is made again, alone.
_IN_EACH_OTHERS_WAY = frozenset({"40001", "40P01"})

_HOW_TO_MEND = {
    "sqlite": "Is its directory there, writable and not full, and does no other program hold it?",
    "postgresql": "Is the server up, the database made, and may this user make tables in it?",
}

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]
Work = Callable[[Connection], T]
"""What is done in one transaction, in the writer's thread. It may be rolled back and done again: no side effects."""
Finish = Callable[[Connection, Sequence[Any]], None]
"""What is done once, at a transaction's end, with all that its members have left for it."""

_LEFT = "left for the end"


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
        # Hears of each transaction: how many writes it took, and how long, in seconds.
        self.wrote: Callable[[int, float], None] | None = None
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="database-writer")
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open, migrate to the newest revision, and start the writer."""
        engine = connect(url)
        database = cls(engine)
        try:
            await asyncio.get_running_loop().run_in_executor(database._writer, upgrade, engine)
        except (SQLAlchemyError, OSError, CommandError) as error:
            await database.close()
            raise Misconfigured(
                f"the database {engine.url.render_as_string()} does not open: {said_by_driver(error)}. "
                f"{_HOW_TO_MEND[engine.dialect.name]}"
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

    async def transact(self, work: Work[T], *, apart: bool = True) -> T:
        """Do what reads and writes in one transaction that no other writer comes between; return what it returns.

        What it raises undoes what it did, and is raised here.
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
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._truncate)

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
            started_s = loop.time()
            ended = await loop.run_in_executor(self._writer, self._commit, waiting)
            if self.wrote is not None:
                self.wrote(len(waiting), loop.time() - started_s)
            for pending, how in zip(waiting, ended, strict=True):
                _settle(pending, how)

    # --- what the threads do ---

    def _read(self, query: Select[Any], take: Callable[[Iterable[Row[Any]]], T]) -> T:
        # Where all rows are wanted PostgreSQL is asked once, without a transaction; else they come as they are taken.
        all_ = take is list
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if all_ else {"stream_results": True}
        if not all_:
            options["max_row_buffer"] = _ROWS_AHEAD
        for try_ in range(1, _TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    if connection.dialect.name != "sqlite":
                        connection = connection.execution_options(**options)  # noqa: PLW2901 - the same one
                    with connection.execute(query) as found:
                        return take(found)
            except SQLAlchemyError as error:
                if _lost(error) and try_ < _TRIES:
                    continue
                reason = f"the database is locked, damaged or gone: {said_by_driver(error)}; try again later"
                raise Unavailable(reason) from error
        raise AssertionError("unreachable")

    def _commit(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        """Commit a group in one transaction; return how each member of it ended."""
        for try_ in range(1, _TRIES + 1):
            try:
                return self._in_one_transaction(group)
            except _Unknown as unknown:
                log.error("the connection was lost in a commit", error=str(unknown), writes=len(group))  # noqa: TRY400 - no statements
                return [_Ended(error=Unavailable(f"{unknown}; look before it is done again")) for _ in group]
            except Exception as error:
                alone = len(group) == 1
                if try_ < _TRIES and (_lost(error) or (alone and _in_each_others_way(error))):
                    continue
                about_all = isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE)
                if about_all and (alone or not _in_each_others_way(error)):
                    log.error("the database refuses writes", error=said_by_driver(error), writes=len(group))  # noqa: TRY400 - no statements
                    reason = f"the database is locked, full or gone: {said_by_driver(error)}; try again later"
                    return [_Ended(error=Unavailable(reason)) for _ in group]
                if alone:
                    return [_Ended(error=error)]
                break
        # One bad write must not fail its neighbours: each gets a transaction of its own.
        return [ended for pending in group for ended in self._commit([pending])]

    def _in_one_transaction(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        with self._engine.connect() as connection:
            begin_writing(connection)
            ended = _all_ended(connection, group)
            try:
                connection.commit()
            except DBAPIError as error:
                if error.connection_invalidated:
                    said = said_by_driver(error)
                    raise _Unknown(
                        f"the database was lost in a commit, and whether it was done is open: {said}"
                    ) from error
                raise
            return ended

    def _truncate(self) -> bool:
        with self._engine.connect() as connection:
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        return not busy

    def _shut_down(self) -> None:
        self._readers.shutdown()
        self._engine.dispose()


def _execute(connection: Connection, *, writes: Sequence[Write]) -> None:
    for statement, parameters in writes:
        connection.execute(statement, parameters)


def at_the_end(connection: Connection, finish: Finish, items: Sequence[Any]) -> None:
    """Have `finish` called with these items, and with those of others, once, before the transaction is committed.

    What a member leaves whose own part is undone is forgotten. In a transaction of somebody else's it is done at once.
    """
    left: list[tuple[Finish, Any]] | None = connection.info.get(_LEFT)
    if left is None:
        finish(connection, items)
    else:
        left += [(finish, item) for item in items]


def _all_ended(connection: Connection, group: Sequence[_Pending]) -> Sequence[_Ended]:
    """Do all members of a group, and then what they have left for the end. Raises what fails the transaction."""
    left: list[tuple[Finish, Any]] = []
    info = connection.info
    info[_LEFT] = left
    try:
        ended = [_ended(connection, pending, left) for pending in group]
    finally:
        del info[_LEFT]  # of a connection that may be lost by now
    for finish in dict.fromkeys(finish for finish, _ in left):
        finish(connection, [item for to, item in left if to == finish])
    return ended


def _ended(connection: Connection, pending: _Pending, left: list[tuple[Finish, Any]]) -> _Ended:
    """Do one member of a group. Raises what fails the whole transaction."""
    if not pending.apart:
        return _Ended(pending.work(connection))
    mark = len(left)
    try:
        with connection.begin_nested():
            return _Ended(pending.work(connection))
    except Exception as error:
        del left[mark:]
        if connection.invalidated:
            raise _Lost(said_by_driver(error)) from error
        if isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE):
            raise
        return _Ended(error=error)


class _Lost(OSError):
    """The connection was lost before a commit: nothing was done."""


class _Unknown(Exception):
    """The connection was lost while a commit was under way."""


def _lost(error: Exception) -> bool:
    return isinstance(error, _Lost) or (isinstance(error, DBAPIError) and error.connection_invalidated)


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
