"""The revisions of the schema: which one a database has, migrating it, and whether it has what the revision needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import Misconfigured
from gateway.storage.connecting import begin_writing, connect, driver_message
from gateway.storage.tables import metadata

NEWEST = "0007"
"""The revision that this program works with. It is a constant because alembic is a tenth of a gateway's imports, and
only a gateway that finds another revision needs it."""

_MIGRATIONS = Path(__file__).parent / "migrations"
_NAMED = 5

_COUNTED = ("approvals", "events", "messages", "runs", "thread_metadata", "tool_calls")
_BOTH = frozenset(
    [
        "audit_heads_held",
        "threads_counted",
        *(f"{table}_{what}" for table in _COUNTED for what in ("counted", "uncounted")),
        *(f"{table}_recounted" for table in ("approvals", "tool_calls")),
        *(f"{table}_refused" for table in ("runs", "tool_calls")),
    ]
)
_SQLITE = {
    *("audit_heads_back", "audit_heads_replaced", "audit_records_changed", "audit_records_held"),
    *("audit_records_replaced", "threads_uncounted"),
}
_POSTGRESQL = {"audit_heads_guard", "audit_heads_truncated", "audit_records_guard", "audit_records_truncated"}
TRIGGERS = {"sqlite": _BOTH | _SQLITE, "postgresql": _BOTH | _POSTGRESQL}
"""The triggers that the migrations create. A test compares them with those of a new database."""

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

    @property
    def known(self) -> bool:
        """Whether this program has the migration, so the database is not newer."""
        return self.current is None or _is_known(self.current)


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Upgrade a database to a revision, in one transaction; of concurrent processes, one does it.

    Raises SQLAlchemyError; NotMigrated if the database is of a newer program, or lacks parts of its revision.
    """
    with engine.connect() as connection:
        current = _current(connection)
    if current is not None and not _is_known(current):
        raise NotMigrated(
            f"it is at revision {current} and was upgraded by a newer airlock; this one knows revisions up to "
            f"{NEWEST}. Run the newer release, or restore a backup from before the upgrade (docs/storage.md)"
        )
    if current != (NEWEST if revision == "head" else revision):
        _migrate(engine, "upgrade", revision)
    if revision == "head":
        with engine.connect() as connection:
            missing = missing_in(connection)
        if missing:
            raise NotMigrated(
                f"it is marked as revision {NEWEST}, but lacks {shortened(missing)}. A migration was interrupted, "
                "or the tables were changed by hand: restore a backup, or create what is missing as in a new "
                "database"
            )


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade a database to a revision, "base" for none; what only later revisions have is lost."""
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
            if way == "upgrade" and _current(connection) == "0005":
                _complete_0005(connection)
            config = Config()
            config.set_main_option("script_location", str(_MIGRATIONS))
            config.attributes["connection"] = connection
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


def revision_of(url: str) -> Revision:
    """Return a database's revision without changing anything; Misconfigured if it does not open."""
    with _connected(url) as connection:
        return Revision(_current(connection), NEWEST)


def missing_from(url: str) -> list[str]:
    """Return what a database of the newest revision lacks; Misconfigured if it does not open."""
    with _connected(url) as connection:
        return missing_in(connection)


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = connect(url)
    try:
        with engine.connect() as connection:
            yield connection
    except (SQLAlchemyError, OSError) as error:
        raise Misconfigured(f"the database {engine.url.render_as_string()}: {driver_message(error)}") from error
    finally:
        engine.dispose()


def shortened(missing: Sequence[str]) -> str:
    """Return the first of a list of names, and the number of the others."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return ", ".join(missing[:_NAMED]) + more


def _is_known(revision: str) -> bool:
    return any((_MIGRATIONS / "versions").glob(f"{revision}_*.py"))


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


def _complete_0005(connection: Connection) -> None:
    """Complete a database of the first form of migration 0005, which was edited after databases were created with it.

    The next migrations need the later form. No other migration was edited after its release, and none will be
    (tests/unit/gateway/storage/test_frozen_migrations.py).
    """
    from alembic.migration import MigrationContext  # noqa: PLC0415 - see NEWEST
    from alembic.operations import Operations  # noqa: PLC0415

    op = Operations(MigrationContext.configure(connection))
    inspector = inspect(connection)
    if "kind" not in {column["name"] for column in inspector.get_columns("snapshots")}:
        _complete_snapshots(op)
    if not inspector.has_table("workspace_requests"):
        _create_workspace_requests(op)
    if "ix_sandbox_transitions_sandbox" not in {one["name"] for one in inspector.get_indexes("sandbox_transitions")}:
        op.create_index("ix_sandbox_transitions_sandbox", "sandbox_transitions", ["sandbox", "id"])


def _complete_snapshots(op: Any) -> None:
    """Give each snapshot its thread's id. All of them were taken on request, as there were no others then."""
    columns: dict[str, Any] = {"thread_id": sa.String(length=64), "kind": sa.String(length=8), "step": sa.Integer()}
    with op.batch_alter_table("snapshots") as table:
        for name, kind in columns.items():
            table.add_column(sa.Column(name, kind))
    op.execute(
        "UPDATE snapshots SET kind = 'asked', step = 0, thread_id = COALESCE((SELECT threads.id FROM threads "
        "WHERE threads.tenant = snapshots.tenant AND threads.name = snapshots.thread), '')"
    )
    with op.batch_alter_table("snapshots") as table:
        for name, kind in columns.items():
            table.alter_column(name, existing_type=kind, nullable=False)
    op.create_index("ix_snapshots_thread_id", "snapshots", ["thread_id", "run_id", "step"])


def _create_workspace_requests(op: Any) -> None:
    op.create_table(
        "workspace_requests",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_workspace_requests_thread_id")),
        sa.PrimaryKeyConstraint("tenant", "request_id", name=op.f("pk_workspace_requests")),
    )
    op.create_index(op.f("ix_workspace_requests_thread_id"), "workspace_requests", ["thread_id"])
