"""The revisions of the schema: which one a database has, migrating it, and whether it has what the revision needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import Misconfigured
from gateway.storage.connecting import begin_writing, connect, driver_message
from gateway.storage.tables import WHERE, metadata
from gateway.storage.triggers import FUNCTIONS, TRIGGERS

NEWEST = "0012"
"""The revision that this program works with. It is a constant because alembic is a tenth of a gateway's imports, and
only a gateway that finds another revision needs it."""

_MIGRATIONS = Path(__file__).parent / "migrations"
_NAMED = 5

_FOUND = {
    "sqlite": """
        SELECT type || ' ' || name FROM sqlite_master
        UNION ALL
        SELECT 'column ' || m.name || '.' || p.name
        FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table'
    """,
    "postgresql": """
        SELECT CASE relkind WHEN 'i' THEN 'index ' ELSE 'table ' END || relname
        FROM pg_class WHERE relkind IN ('r', 'p', 'i') AND relnamespace = current_schema()::regnamespace
        UNION ALL
        SELECT 'column ' || c.relname || '.' || a.attname
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
            AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT 'trigger ' || t.tgname
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace
    """,
}


class NotMigrated(Exception):
    """A database that cannot be migrated, and was left unchanged; str() says why."""


@dataclass(frozen=True)
class Revision:
    """A database's revision, None if it is empty, and the one that this program migrates to."""

    current: str | None
    newest: str

    missing: Sequence[str] = ()
    """What the database lacks of the newest revision, if it has that."""

    @property
    def known(self) -> bool:
        """Whether this program has the migration, so the database is neither newer nor older than all releases."""
        return self.current is None or any((_MIGRATIONS / "versions").glob(f"{self.current}_*.py"))

    @property
    def unreleased(self) -> bool:
        """Whether the database is from before the first release, and cannot be upgraded."""
        return self.current is not None and self.current < self.newest and not self.known


def upgrade(engine: Engine) -> None:
    """Create the schema in an empty database, or upgrade it, in one transaction; of concurrent processes, one does it.

    Raises SQLAlchemyError; NotMigrated if the database is of a newer program, or lacks parts of its revision.
    """
    found = _revision_in(engine)
    if found.unreleased:
        raise NotMigrated(
            f"it is at revision {found.current} and was created by an unreleased airlock, before the first release: "
            "start with a new database"
        )
    if not found.known:
        raise NotMigrated(
            f"it is at revision {found.current} and was upgraded by a newer airlock; this one knows revisions up to "
            f"{NEWEST}. Run the newer release, or restore a backup from before the upgrade (docs/storage.md)"
        )
    if found.current != NEWEST:
        _migrate(engine, "upgrade", "head")
        found = _revision_in(engine)
    if found.missing:
        raise NotMigrated(
            f"it is marked as revision {NEWEST}, but lacks {shortened(found.missing)}. A migration was interrupted, "
            "or the tables were changed by hand: restore a backup, or create what is missing as in a new "
            "database"
        )


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade a database to a revision; what only later revisions have is lost. Raises NotMigrated."""
    _migrate(engine, "downgrade", revision)


def _migrate(engine: Engine, way: Literal["upgrade", "downgrade"], revision: str) -> None:
    from alembic import command  # noqa: PLC0415 - see NEWEST
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if sqlite:
            # SQLite changes a table by replacing it, which rows that refer to the table would prevent.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        else:
            # Another process may be migrating, and a large table takes long.
            for limit in ("statement_timeout", "lock_timeout"):
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
        try:
            begin_writing(connection)
            config = Config()
            config.set_main_option("script_location", str(_MIGRATIONS))
            config.attributes["connection"] = connection
            if way == "upgrade" and _current(connection) is None:
                create_schema(connection)
                command.stamp(config, revision)
            else:
                getattr(command, way)(config, revision)
            if sqlite and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first()):
                raise NotMigrated(f"rows of {broken[0]} would point to nothing")
            connection.commit()
        except CommandError as error:
            raise NotMigrated(str(error)) from error
        finally:
            connection.rollback()
            if sqlite:
                connection.exec_driver_sql("PRAGMA foreign_keys=ON")


def create_schema(connection: Connection) -> None:
    """Create the schema of the newest revision in an empty database."""
    dialect = connection.dialect.name
    for index in (index for table in metadata.tables.values() for index in table.indexes if WHERE in index.info):
        index.kwargs[f"{dialect}_where"] = text(index.info[WHERE])
    metadata.create_all(connection, checkfirst=False)
    functions = FUNCTIONS if dialect == "postgresql" else {}
    for name, body in functions.items():
        connection.execute(text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"))
    for name, rest in TRIGGERS[dialect].items():
        connection.execute(text(f"CREATE TRIGGER {name} {rest}"))


def revision_of(url: str) -> Revision:
    """Return a database's revision without changing anything; Misconfigured if it does not open."""
    engine = connect(url)
    try:
        return _revision_in(engine)
    except (SQLAlchemyError, OSError) as error:
        raise Misconfigured(f"the database {engine.url.render_as_string()}: {driver_message(error)}") from error
    finally:
        engine.dispose()


def _revision_in(engine: Engine) -> Revision:
    with engine.connect() as connection:
        current = _current(connection)
        return Revision(current, NEWEST, missing_in(connection) if current == NEWEST else ())


def shortened(missing: Sequence[str]) -> str:
    """Return the first of a list of names, and the number of the others."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return ", ".join(missing[:_NAMED]) + more


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


def found_in(connection: Connection) -> frozenset[str]:
    """Return a database's schema, as `table T`, `column T.C`, `index I` and `trigger T`."""
    return frozenset(str(one) for (one,) in connection.exec_driver_sql(_FOUND[connection.dialect.name]))


def missing_in(connection: Connection) -> list[str]:
    """Return what a database of the newest revision lacks, named as in found_in(). Additional objects are fine."""
    found = found_in(connection)
    return [one for one in _expected(connection.dialect.name) if one not in found]


def _expected(dialect: str) -> Iterator[str]:
    for table in metadata.sorted_tables:
        yield f"table {table.name}"
        yield from (f"column {table.name}.{column.name}" for column in table.columns)
        yield from sorted(f"index {index.name}" for index in table.indexes)
    yield from (f"trigger {name}" for name in sorted(TRIGGERS[dialect]))
