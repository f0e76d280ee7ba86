"""The database's one writer: a thread that commits what many callers wait for in one transaction.

Work that comes while a transaction is committed makes up the next one. The thread is daemonic: a process that ends
without closing its database ends as one that was killed, and loses only what nobody was told is done.

A connection that is lost before the commit costs nothing: the transaction is made again. One that is lost while the
commit is under way leaves open whether it was done. It is not done again; who waits for it is told so, and decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as NoConnection

from gateway.errors import Unavailable
from gateway.storage.connecting import begin_writing, said_by_driver
from gateway.storage.refusals import Refusals

log = structlog.get_logger(__name__)
TRIES = 3
"""A connection may have been lost long before it is used; the one made then is new, or nobody answers."""

# One transaction takes at most this many callers' writes, so that a burst cannot hold the database for long.
_GROUP_LIMIT = 128
# A locked, full or damaged database refuses every write. What else a driver says, or cannot take, is about one of them.
_ABOUT_THE_DATABASE = (DatabaseError, InterfaceError, NoConnection, OSError)
_ABOUT_A_WRITE = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
# What PostgreSQL says of a transaction that stood in another's way: each goes through when it is made again, alone.
_IN_EACH_OTHERS_WAY = frozenset({"40001", "40P01"})
_LEFT = "left for the end"

Finish = Callable[[Connection, Sequence[Any]], None]
"""What is done once, at a transaction's end, with all that its members have left for it."""


@dataclass(frozen=True)
class _Pending:
    work: Callable[[Connection], Any]
    done: asyncio.Future[Any]
    # Whether what it raises undoes its own part of the group's transaction only.
    apart: bool = True


@dataclass(frozen=True)
class _Ended:
    """How a caller's work ended."""

    result: Any = None
    error: Exception | None = None


class Writer:
    """Writes to one database, for the event loop that it was started in."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._refusals = Refusals(engine.url.set(query={}).render_as_string(hide_password=True))
        # Hears of each transaction: how many writes it took, and how long, in seconds.
        self.wrote: Callable[[int, float], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        # Kept from one transaction to the next; None before the first, and after one that failed.
        self._connection: Connection | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name="database-writer", daemon=True).start()

    async def done(self, work: Callable[[Connection], Any], *, apart: bool) -> Any:
        """Return what `work` returns, once its transaction is committed; see Database.transact."""
        pending = _Pending(work, self._loop.create_future(), apart)
        self._queue.put(pending)
        return await pending.done

    async def close(self) -> None:
        """Finish what callers wait for, and end the thread; no work may be given after this."""
        self._queue.put(None)
        await asyncio.shield(self._ended)

    # --- what the thread does ---

    def _run(self) -> None:
        while (group := self._next_group())[-1] is not None:
            self._write(group)
        self._write(group[:-1])
        self._let_go()
        self._tell(self._ended.set_result, None)

    def _next_group(self) -> Sequence[_Pending | None]:
        """Wait for work and return all that is there; None, for the end, comes last."""
        group = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while group[-1] is not None and len(group) < _GROUP_LIMIT:
                group.append(self._queue.get_nowait())
        return group

    def _write(self, group: Sequence[_Pending | None]) -> None:
        waiting = [pending for pending in group if pending is not None]
        if not waiting:
            return
        started_s = perf_counter()
        ended = self._commit(waiting)
        self._tell(self._settle, waiting, ended, perf_counter() - started_s)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and whoever waited is gone with it
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _commit(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        """Commit a group in one transaction; return how each member of it ended."""
        for try_ in range(1, TRIES + 1):
            try:
                ended = self._in_one_transaction(group)
                self._refusals.taken()
            except _Unknown as unknown:
                log.error("the connection was lost in a commit", error=str(unknown), writes=len(group))  # noqa: TRY400 - no statements
                return [_Ended(error=Unavailable(f"{unknown}; look before it is done again")) for _ in group]
            except Exception as error:  # every caller is told how its own ended
                alone = len(group) == 1
                if try_ < TRIES and (lost(error) or (alone and _in_each_others_way(error))):
                    continue
                about_all = isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE)
                if about_all and (alone or not _in_each_others_way(error)):
                    self._refusals.refused(error, len(group))
                    reason = f"the database is locked, full or gone: {said_by_driver(error)}; try again later"
                    return [_Ended(error=Unavailable(reason)) for _ in group]
                if alone:
                    return [_Ended(error=error)]
                break
            else:
                return ended
        # One bad write must not fail its neighbours: each gets a transaction of its own.
        return [ended for pending in group for ended in self._commit([pending])]

    def _in_one_transaction(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        if self._connection is None:
            self._connection = self._engine.connect()
        connection = self._connection
        try:
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
        except BaseException:
            self._let_go()
            raise
        return ended

    def _let_go(self) -> None:
        """Give the connection back to its pool, which undoes what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- what the event loop does ---

    def _settle(self, group: Sequence[_Pending], ended: Sequence[_Ended], taken_s: float) -> None:
        """Tell the callers how their work ended, those who have not gone away meanwhile."""
        if self.wrote is not None:
            self.wrote(len(group), taken_s)
        for pending, how in zip(group, ended, strict=True):
            if pending.done.done():
                continue
            if how.error is None:
                pending.done.set_result(how.result)
            else:
                pending.done.set_exception(how.error)


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
    except Exception as error:  # as above
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


def lost(error: Exception) -> bool:
    """Return whether an error says that a connection is lost."""
    return isinstance(error, _Lost) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _in_each_others_way(error: Exception) -> bool:
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _IN_EACH_OTHERS_WAY
