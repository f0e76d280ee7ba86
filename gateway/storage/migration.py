"""The revisions of the schema: which one a database has, and bringing it to the newest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import Misconfigured
from gateway.storage.connecting import begin_writing, connect, said_by_driver

_MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True)
class Revision:
    """What a database has, None when it is empty, and what this program brings it to."""

    current: str | None
    newest: str


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring a database up to a revision, in one transaction; of processes that do so at once, one does.

    Raises SQLAlchemyError, and CommandError when the database is of a newer program.
    """
    _migrate(engine, partial(command.upgrade, revision=revision))


def downgrade(engine: Engine, revision: str) -> None:
    """Take a database down to a revision, "base" for none; what only the later ones know is lost."""
    _migrate(engine, partial(command.downgrade, revision=revision))


def _migrate(engine: Engine, change: Callable[[AlembicConfig], None]) -> None:
    sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if sqlite:
            # It changes a table by making another in its place, which rows that point to the table would forbid.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        else:
            # Another process may be at it, and a large table takes its time.
            for limit in ("statement_timeout", "lock_timeout"):
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
        try:
            begin_writing(connection)
            config = AlembicConfig()
            config.set_main_option("script_location", str(_MIGRATIONS))
            config.attributes["connection"] = connection
            change(config)
            if sqlite and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first()):
                raise CommandError(f"rows of {broken[0]} would point to nothing")
            connection.commit()
        finally:
            connection.rollback()
            if sqlite:
                connection.exec_driver_sql("PRAGMA foreign_keys=ON")


def revision_of(url: str) -> Revision:
    """Look at a database and change nothing. Raises Misconfigured when it does not open."""
    engine = connect(url)
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
    except (SQLAlchemyError, OSError, CommandError) as error:
        raise Misconfigured(f"the database {engine.url.render_as_string()}: {said_by_driver(error)}") from error
    finally:
        engine.dispose()
    newest = ScriptDirectory(str(_MIGRATIONS)).get_current_head()
    return Revision(current, newest or "")
