"""The database's one writer: a thread that commits the writes of many callers in one transaction.

Work that arrives during a commit makes up the next transaction. The thread is a daemon: a process that ends without
closing its database ends like a killed one, and loses only writes that were not acknowledged.

While writes come one at a time and SQLite takes them quickly, short ones are committed on the event loop: two thread
switches are a twentieth of what a tool call costs.

A connection that is lost before the commit costs nothing: the transaction is repeated. One that is lost during the
commit leaves open whether it was done. It is not repeated; the callers get an error that says so.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, exc

from gateway.errors import Unavailable
from gateway.storage.connecting import begin_writing, driver_message, driver_of

log = structlog.get_logger(__name__)
TRIES = 3
"""A pooled connection may have been lost long before it is used; the one after it is new."""

# One transaction takes at most this many writes, so that a burst does not block the database for long.
_GROUP_LIMIT = 128
# A locked, full or damaged database refuses every write. Other driver errors are about one write.
_ABOUT_THE_DATABASE = (exc.DatabaseError, exc.InterfaceError, exc.TimeoutError, OSError)
_ABOUT_A_WRITE = (exc.IntegrityError, exc.DataError, exc.ProgrammingError, exc.NotSupportedError)
# PostgreSQL's codes for transactions in conflict: each succeeds when it is repeated alone.
_CONFLICTS = frozenset({"40001", "40P01"})
_DEFERRED = "deferred"
# A disk may stay full for hours, and a gateway writes several times a second: each line is logged this often at most,
# also if the database alternates between taking and refusing writes.
LOG_AGAIN_S = 30.0

# When a commit on the event loop is likely to be short: after so many in a row that no other write met, each of them
# this quick. From then on every so many go to the thread, which sees what arrives meanwhile, and empties the log.
_QUICK_S = 0.002
_ALONE = 16
_AT_ONCE = 32

Finish = Callable[[Connection, Sequence[Any]], None]
"""Called once at a transaction's end, with all the items that its members deferred to it."""


@dataclass(frozen=True)
class _Pending:
    work: Callable[[Connection], Any]
    done: asyncio.Future[Any]
    # Whether an exception rolls back only this member's part of the transaction.
    apart: bool = True


@dataclass(frozen=True)
class _Ended:
    result: Any = None
    error: Exception | None = None


class Refusals:
    """Counts the writes that one database refuses; for one thread."""

    def __init__(self, database: str, clock: Callable[[], float] = monotonic) -> None:
        """`database` is its URL without its password; `clock` counts seconds."""
        self._database = database
        self._clock = clock
        self._logged_s: float | None = None
        self._not_logged = 0
        self._refusing = False

    def refused(self, error: Exception, writes: int) -> None:
        self._not_logged += writes
        now_s = self._clock()
        if self._logged_s is not None and now_s - self._logged_s < LOG_AGAIN_S:
            return
        said = driver_message(error)
        log.error("the database refuses writes", error=said, refused_writes=self._not_logged, database=self._database)
        self._logged_s, self._not_logged, self._refusing = now_s, 0, True

    def taken(self) -> None:
        if self._refusing:
            log.info("the database takes writes again", refused_writes=self._not_logged, database=self._database)
            self._not_logged, self._refusing = 0, False


class Pace:
    """Whether the next write is committed on the event loop, from how the last ones went."""

    def __init__(self) -> None:
        self._alone = 0
        self._left = 0

    def take(self) -> bool:
        """Return whether one may be, and count it."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def written(self, taken_s: float) -> None:
        """Count a commit on the event loop."""
        if taken_s > _QUICK_S:
            self.refused()

    def settled(self, taken_s: float, *, alone: bool) -> None:
        """Count a transaction of the thread; `alone`: it had one write, and no other arrived meanwhile."""
        self._alone = self._alone + 1 if alone and taken_s <= _QUICK_S else 0
        self._left = _AT_ONCE if self._alone >= _ALONE else 0

    def refused(self) -> None:
        """Have the thread do the next ones: another process writes too, for example."""
        self._alone = self._left = 0


class Writer:
    """Writes to one database, for the event loop that it was started in."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._refusals = Refusals(engine.url.set(query={}).render_as_string(hide_password=True))
        # Called after each transaction: its number of writes, and its duration in seconds.
        self.wrote: Callable[[int, float], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        # Reused between transactions; None before the first, and after one that failed.
        self._connection: Connection | None = None
        # Of the event loop; None before its first commit, and after one that failed.
        self._own: Connection | None = None
        self._pace = Pace()
        self._under_way = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name="database-writer", daemon=True).start()

    async def done(self, work: Callable[[Connection], Any], *, apart: bool, short: bool = False) -> Any:
        """Return the result of `work` once its transaction is committed; see Database.transact."""
        pending = _Pending(work, self._loop.create_future(), apart)
        if not (short and not self._under_way and self._pace.take() and self._is_done(pending)):
            self._under_way += 1
            self._queue.put(pending)
        return await pending.done

    async def close(self) -> None:
        """Finish the pending work and end the thread; no work may be submitted after this."""
        self._queue.put(None)
        await asyncio.shield(self._ended)
        self._close_own()

    # --- what the thread does ---

    def _run(self) -> None:
        while (group := self._next_group())[-1] is not None:
            self._write(group)
        self._write(group[:-1])
        self._let_go()
        self._call_back(self._ended.set_result, None)

    def _next_group(self) -> Sequence[_Pending | None]:
        """Wait for work and return all that is queued; None, for the end, comes last."""
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
        self._call_back(self._settled, waiting, ended, perf_counter() - started_s)

    def _call_back(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its callers are gone
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _commit(self, group: Sequence[_Pending]) -> Sequence[_Ended]:
        """Commit a group in one transaction; return how each member ended."""
        for try_ in range(1, TRIES + 1):
            try:
                ended = self._in_one_transaction(group)
                self._refusals.taken()
            except _Unknown as unknown:
                log.error("the connection was lost in a commit", error=str(unknown), writes=len(group))  # noqa: TRY400 - no statements
                return [
                    _Ended(error=Unavailable(f"{unknown}; check whether the change was made before you repeat it"))
                    for _ in group
                ]
            except Exception as error:  # each caller gets its own
                alone = len(group) == 1
                if try_ < TRIES and (lost(error) or (alone and _is_conflict(error))):
                    continue
                if _is_about_all(error) and (alone or not _is_conflict(error)):
                    self._refusals.refused(error, len(group))
                    reason = f"the database is locked, full or gone: {driver_message(error)}; try again later"
                    return [_Ended(error=Unavailable(reason)) for _ in group]
                if alone:
                    return [_Ended(error=error)]
                break
            else:
                return ended
        # One bad write must not fail the others: each gets a transaction of its own.
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
            except exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                said = driver_message(error)
                raise _Unknown(
                    f"the database was lost in a commit, and it is unknown whether the change was made: {said}"
                ) from error
        except BaseException:
            self._let_go()
            raise
        return ended

    def _let_go(self) -> None:
        """Return the connection to its pool, which rolls back what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- what the event loop does ---

    def _is_done(self, pending: _Pending) -> bool:
        """Commit one write here; return False if that fails, for the thread to wait, repeat and report."""
        started_s = perf_counter()
        try:
            if self._own is None:
                self._own = _opened(self._engine)
            begin_writing(self._own)
            (ended,) = _all_ended(self._own, [pending])
            self._own.commit()
        except BaseException as error:
            self._pace.refused()
            self._close_own()
            if not isinstance(error, Exception):
                raise
            return False
        taken_s = perf_counter() - started_s
        self._pace.written(taken_s)
        self._settle([pending], [ended], taken_s)
        return True

    def _close_own(self) -> None:
        connection, self._own = self._own, None
        if connection is not None:
            connection.invalidate()  # no other may get it from the pool with these settings
            connection.close()

    def _settled(self, group: Sequence[_Pending], ended: Sequence[_Ended], taken_s: float) -> None:
        self._under_way -= len(group)
        if self._engine.dialect.name == "sqlite":
            self._pace.settled(taken_s, alone=len(group) == 1 and not self._under_way)
        self._settle(group, ended, taken_s)

    def _settle(self, group: Sequence[_Pending], ended: Sequence[_Ended], taken_s: float) -> None:
        if self.wrote is not None:
            self.wrote(len(group), taken_s)
        for pending, how in zip(group, ended, strict=True):
            if pending.done.done():
                continue
            if how.error is None:
                pending.done.set_result(how.result)
            else:
                pending.done.set_exception(how.error)


def _opened(engine: Engine) -> Connection:
    """Return a connection for the event loop, which waits for no other process and does not empty the log."""
    connection = engine.connect()
    for pragma in ("busy_timeout=0", "wal_autocheckpoint=0"):
        driver_of(connection).execute(f"PRAGMA {pragma}")
    return connection


def at_the_end(connection: Connection, finish: Finish, items: Sequence[Any]) -> None:
    """Have `finish` called once before the commit, with these items and those that other members deferred to it.

    The items of a member that is rolled back are dropped. In a transaction of another thread it is called at once.
    """
    left: list[tuple[Finish, Any]] | None = connection.info.get(_DEFERRED)
    if left is None:
        finish(connection, items)
    else:
        left += [(finish, item) for item in items]


def _all_ended(connection: Connection, group: Sequence[_Pending]) -> Sequence[_Ended]:
    """Run all members of a group, then what they deferred. Raises what fails the transaction."""
    left: list[tuple[Finish, Any]] = []
    info = connection.info
    info[_DEFERRED] = left
    try:
        ended = [_ended(connection, pending, left) for pending in group]
    finally:
        del info[_DEFERRED]
    for finish in dict.fromkeys(finish for finish, _ in left):
        finish(connection, [item for to, item in left if to == finish])
    return ended


def _ended(connection: Connection, pending: _Pending, left: list[tuple[Finish, Any]]) -> _Ended:
    if not pending.apart:
        return _Ended(pending.work(connection))
    mark = len(left)
    try:
        with connection.begin_nested():
            return _Ended(pending.work(connection))
    except Exception as error:
        del left[mark:]
        if connection.invalidated:
            raise _Lost(driver_message(error)) from error
        if _is_about_all(error):
            raise
        return _Ended(error=error)


class _Lost(OSError):
    """The connection was lost before a commit: nothing was done."""


class _Unknown(Exception):
    """The connection was lost during a commit."""


def lost(error: Exception) -> bool:
    """Return whether an error means a lost connection."""
    return isinstance(error, _Lost) or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)


def _is_about_all(error: Exception) -> bool:
    return isinstance(error, _ABOUT_THE_DATABASE) and not isinstance(error, _ABOUT_A_WRITE)


def _is_conflict(error: Exception) -> bool:
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _CONFLICTS
