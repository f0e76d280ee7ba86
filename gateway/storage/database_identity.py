"""The identity of a database, which distinguishes it from a copy: a copy has all the rows, ids included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from gateway.storage.database import Database


@dataclass(frozen=True)
class DatabaseIdentity:
    """`id` differs between a database and a copy; `shown` is its location, for errors.

    A physical copy of a whole PostgreSQL server has the id of the original.
    """

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
