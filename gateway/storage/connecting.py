"""Connections: SQLite's pragmas, PostgreSQL's driver and timeouts, and the text that both can store.

PostgreSQL refuses text with NUL, and some of SQLite's functions cut it there. Text of users, models and tools may have
it, so it is stored as U+FFFD in either, as half of a surrogate pair is.
"""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, exc, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from gateway.errors import Misconfigured

READERS = 4
"""The number of concurrent readers."""

# How long one process waits for another's transaction: with SQLite, the CLI writes while gateways run.
_BUSY_S = 10.0
_WAL_RETRY_S = 0.05
_CONNECT_S = 10
# A statement takes milliseconds. A gateway that was stopped or cut off inside a transaction must not block the others
# for longer than they wait.
_POSTGRESQL_LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "5s"}
# To notice a server that vanished: seconds, and milliseconds for unacknowledged data.
_POSTGRESQL_LIVENESS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# PostgreSQL's lock for writers: any number that no other program uses in this database.
_WRITERS_LOCK = int.from_bytes(b"AIRLOCK")
_NUL, _REPLACEMENT = "\0", "\ufffd"


def connect(url: str) -> Engine:
    """Return the engine for a URL, without connecting; Misconfigured for an invalid URL or driver."""
    try:
        parsed = make_url(url)
        # Parameters contain tenant data, which no error message may show.
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    except (SQLAlchemyError, ImportError) as error:
        raise Misconfigured(f"database_url: {error}; sqlite:///FILE is the default") from error
    event.listen(engine, "before_cursor_execute", _without_nul, retval=True)
    event.listen(engine, "handle_error", _without_details)
    return engine


def shown(url: str) -> str:
    """Return a URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def file_of(url: str) -> Path | None:
    """Return SQLite's file; None for an invalid URL, another database, or one in memory."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None  # reported when it is opened
    in_file = parsed.get_backend_name() == "sqlite" and parsed.database and parsed.database != ":memory:"
    return Path(str(parsed.database)) if in_file else None


def begin_writing(connection: Connection) -> None:
    """Begin a transaction with the writers' lock: no other writer comes in between."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")
        return
    if not connection.in_transaction():
        connection.begin()
    try:
        driver_of(connection).execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        raise as_sqlalchemy(error) from error


def driver_of(connection: Connection) -> sqlite3.Connection:
    """Return the connection of SQLite's driver: its statements cost a fraction of SQLAlchemy's."""
    driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    return driver


def as_sqlalchemy(error: sqlite3.Error) -> DBAPIError:
    """Return SQLAlchemy's error for one of the driver, without statement and parameters."""
    kind: type[DBAPIError] = getattr(exc, type(error).__name__, exc.DatabaseError)
    return kind(None, None, error, hide_parameters=True)


def driver_message(error: Exception) -> str:
    """Return the driver's message, without the statement around it."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _sqlite(url: URL) -> Engine:
    if "timeout" not in url.query:
        url = url.update_query_dict({"timeout": str(_BUSY_S)})
    engine = create_engine(url, hide_parameters=True)
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _postgresql(url: URL) -> Engine:
    if url.drivername in {"postgres", "postgresql"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername != "postgresql+psycopg":
        raise Misconfigured(
            f"database_url: {url.drivername}:// is not known: postgresql://USER@HOST/NAME and sqlite:///FILE are"
        )
    limits = " ".join(f"-c {name}={value}" for name, value in _POSTGRESQL_LIMITS.items())
    asked = url.query.get("options", "")
    # The operator's options come last, and win.
    given = {"options": f"{limits} {asked if isinstance(asked, str) else ' '.join(asked)}".strip()}
    usual: dict[str, Any] = {"connect_timeout": _CONNECT_S, "application_name": "airlock", **_POSTGRESQL_LIVENESS}
    return create_engine(
        url,
        hide_parameters=True,
        # The readers, the foremost reader, the writer, and one for what must not wait for them.
        pool_size=READERS + 2,
        max_overflow=1,
        pool_timeout=_BUSY_S,
        isolation_level="READ COMMITTED",
        connect_args=given | {name: value for name, value in usual.items() if name not in url.query},
    )


def _without_nul(
    _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool
) -> tuple[str, Any]:
    """Replace NUL in bound parameters, in whichever shape the driver has them. Runs for every statement."""
    if executemany:
        return statement, [without_nul(row) for row in parameters]
    return statement, without_nul(parameters)


def without_nul(row: Any) -> Any:
    """Return bound parameters, a mapping or a tuple, with NUL replaced."""
    values = row.values() if isinstance(row, Mapping) else row
    if not any(isinstance(value, str) and _NUL in value for value in values):
        return row
    if isinstance(row, Mapping):
        return {name: _replaced(value) for name, value in row.items()}
    return type(row)(_replaced(value) for value in row)


def _replaced(value: Any) -> Any:
    return value.replace(_NUL, _REPLACEMENT) if isinstance(value, str) else value


def _without_details(context: ExceptionContext) -> None:
    """Remove from an error the lines in which PostgreSQL quotes the refused row."""
    for error in (context.original_exception, context.sqlalchemy_exception):
        if error is not None and error.args and isinstance(error.args[0], str):
            error.args = (error.args[0].split("\nDETAIL:")[0], *error.args[1:])


def _set_pragmas(connection: Any, _record: object) -> None:
    _make_wal(connection)
    # FULL: a commit is on disk before it is acknowledged, so a power loss undoes nothing. Deleted data is overwritten:
    # data that a tenant asked to erase must be gone.
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _make_wal(connection: Any) -> None:
    """Set the journal mode. SQLite does not wait for other processes here, so this does."""
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
