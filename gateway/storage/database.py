"""The database: opening it, migrating it, and one writer that commits what many callers wait for in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import Connection, Executable, event
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import Misconfigured, Unavailable

log = structlog.get_logger(__name__)
_MIGRATIONS = Path(__file__).parent / "migrations"
# One transaction takes at most this many callers' writes, so that a burst cannot hold the database for long.
_GROUP_LIMIT = 128

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Write = tuple[Executable, Parameters]


@dataclass
class _Pending:
    writes: Sequence[Write]
    done: asyncio.Future[None]


class Database:
    """An open database. Reads take a connection each; `write` returns when what it was given is durable."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open, migrate to the newest revision, and start the writer."""
        try:
            # Parameters hold what tenants wrote: no message of an error may.
            engine = create_async_engine(url, hide_parameters=True)
        except (SQLAlchemyError, ImportError) as error:
            raise Misconfigured(f"database_url: {error}; sqlite+aiosqlite:///FILE is the default") from error
        if engine.dialect.name == "sqlite":
            event.listen(engine.sync_engine, "connect", _set_pragmas)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(_migrate)
        except (SQLAlchemyError, OSError, CommandError) as error:
            await engine.dispose()
            raise Misconfigured(
                f"the database {engine.url.render_as_string()} does not open: {_said(error)}. Is its directory there, "
                "writable and not full, and does no other program hold it?"
            ) from error
        database = cls(engine)
        database._writer = asyncio.create_task(database._write_groups(), name="database writer")
        return database

    async def close(self) -> None:
        """Finish the writes that callers wait for, then close."""
        self._closed = True
        if self._writer is not None:
            self._queue.put_nowait(None)
            await self._writer
        await self._engine.dispose()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection for reads."""
        async with self._engine.connect() as connection:
            yield connection

    async def write(self, *writes: Write) -> None:
        """Execute statements in one transaction; all of them or none."""
        if self._closed:
            raise Unavailable("the gateway is stopping; ask again when it is back")
        pending = _Pending(writes, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(pending)
        await pending.done

    async def _write_groups(self) -> None:
        open_ = True
        while open_:
            group = [await self._queue.get()]
            while not self._queue.empty() and len(group) < _GROUP_LIMIT:
                group.append(self._queue.get_nowait())
            open_ = None not in group
            await self._commit([pending for pending in group if pending is not None])

    async def _commit(self, group: Sequence[_Pending]) -> None:
        if not group:
            return
        try:
            async with self._engine.begin() as connection:
                for pending in group:
                    for statement, parameters in pending.writes:
                        await connection.execute(statement, parameters)
        except (IntegrityError, DataError) as error:
            if len(group) == 1:
                _settle(group[0], error)
                return
            # One bad write must not fail its neighbours: each gets a transaction of its own.
            for pending in group:
                await self._commit([pending])
            return
        except Exception as error:
            log.error("the database refuses writes", error=_said(error), writes=len(group))  # noqa: TRY400 - no statements
            for pending in group:
                _settle(pending, Unavailable(f"the database is locked, full or gone: {_said(error)}; try again later"))
            return
        for pending in group:
            _settle(pending)


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
    try:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
    except Exception:
        connection.close()  # nobody else will: the pool has not taken it yet, and its thread would outlive the loop
        raise


def _migrate(connection: Connection) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
