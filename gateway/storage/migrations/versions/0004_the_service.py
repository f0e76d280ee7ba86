"""Leases and checkpoints of runs, request ids, keys that expire, what tenants store, and the audit.

Revision ID: 0004
Revises: 0003
"""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_UNDER_WAY = "status IN ('running', 'waiting')"

# A guard against mistakes, not against who owns the database: a record is never changed, and is deleted only once its
# chain's head says that it is no longer held (pruned), or is gone (the tenant was erased). A head never goes back.
_CHANGED = "a record of the audit is never changed"
_HELD = "a record of the audit is deleted by retention or with its tenant only"
_BACK = "the end of an audit chain never goes back"
_IS_HELD = "EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant = OLD.tenant AND h.first_sequence <= OLD.sequence)"
_GOES_BACK = "NEW.sequence < OLD.sequence OR NEW.first_sequence < OLD.first_sequence"
_GUARDS = {
    "sqlite": (
        f"""CREATE TRIGGER audit_records_changed BEFORE UPDATE ON audit_records
            BEGIN SELECT RAISE(ABORT, '{_CHANGED}'); END""",
        f"""CREATE TRIGGER audit_records_held BEFORE DELETE ON audit_records WHEN {_IS_HELD}
            BEGIN SELECT RAISE(ABORT, '{_HELD}'); END""",
        f"""CREATE TRIGGER audit_heads_back BEFORE UPDATE ON audit_heads WHEN {_GOES_BACK}
            BEGIN SELECT RAISE(ABORT, '{_BACK}'); END""",
    ),
    "postgresql": (
        f"""CREATE FUNCTION audit_records_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'UPDATE' THEN RAISE EXCEPTION '{_CHANGED}'; END IF;
            IF {_IS_HELD} THEN RAISE EXCEPTION '{_HELD}'; END IF;
            RETURN OLD; END $$""",
        f"""CREATE FUNCTION audit_heads_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF {_GOES_BACK} THEN RAISE EXCEPTION '{_BACK}'; END IF;
            RETURN NEW; END $$""",
        """CREATE TRIGGER audit_records_guard BEFORE UPDATE OR DELETE ON audit_records
           FOR EACH ROW EXECUTE FUNCTION audit_records_guard()""",
        """CREATE TRIGGER audit_heads_guard BEFORE UPDATE ON audit_heads
           FOR EACH ROW EXECUTE FUNCTION audit_heads_guard()""",
    ),
}

# Where a deletion has begun to remove a thread's files nothing begins any more, in the transaction that would say so.
_GOING = "the thread is being deleted"
_IS_GOING = "EXISTS (SELECT 1 FROM threads t WHERE t.id = NEW.thread_id AND t.deletion IS NOT NULL)"
_BEGINS = {"tool_calls": "NEW.state = 'executing'", "runs": "NEW.status = 'running'"}


def _refusing(dialect: str) -> Iterator[str]:
    """What keeps runs and calls from beginning in a thread that goes."""
    if dialect == "sqlite":
        for table, begins in _BEGINS.items():
            yield f"""CREATE TRIGGER {table}_refused BEFORE INSERT ON {table} WHEN {begins} AND {_IS_GOING}
                BEGIN SELECT RAISE(ABORT, '{_GOING}'); END"""
        return
    yield f"""CREATE FUNCTION refuse_beginning() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF {_IS_GOING} THEN RAISE EXCEPTION '{_GOING}' USING ERRCODE = 'restrict_violation'; END IF;
        RETURN NEW; END $$"""
    for table, begins in _BEGINS.items():
        yield f"""CREATE TRIGGER {table}_refused BEFORE INSERT ON {table} FOR EACH ROW WHEN ({begins})
            EXECUTE FUNCTION refuse_beginning()"""


# What is stored of a tenant is counted by the database itself, in the transaction that changes it, whoever does: the
# long texts of these tables by their columns, and so much more for each row. Whose a row is, its table says, or the
# thread or the run that it belongs to, which is there before it and goes after it.
_ROW_BYTES = 256
_OF_THREAD = "(SELECT o.tenant FROM threads o WHERE o.id = {row}.thread_id)"
_OF_RUN = "(SELECT o.tenant FROM runs o WHERE o.id = {row}.run_id)"
_COUNTED = {
    "messages": (("message",), _OF_THREAD),
    "thread_metadata": (("value",), _OF_THREAD),
    "runs": (("task",), "{row}.tenant"),
    "events": (("payload",), _OF_RUN),
    "tool_calls": (("arguments", "result"), "{row}.tenant"),
    "approvals": (("arguments", "edited_arguments"), "{row}.tenant"),
}
# Of tables whose rows grow and shrink: when these are written.
_CHANGING = {"tool_calls": "result", "approvals": "edited_arguments"}


def _bytes_of(table: str, row: str, dialect: str) -> str:
    length = "length(CAST(coalesce({0}, '') AS BLOB))" if dialect == "sqlite" else "octet_length(coalesce({0}, ''))"
    return " + ".join([str(_ROW_BYTES), *(length.format(f"{row}.{column}") for column in _COUNTED[table][0])])


def _count_what_is_there(dialect: str) -> None:
    op.execute(
        "INSERT INTO storage_use (tenant, threads, bytes) SELECT tenant, count(*), 0 FROM threads GROUP BY tenant"
    )
    for table, (_, whose) in _COUNTED.items():
        op.execute(
            f"""INSERT INTO storage_use (tenant, threads, bytes)
            SELECT {whose.format(row="r")}, 0, sum({_bytes_of(table, "r", dialect)})
            FROM {table} r WHERE true GROUP BY 1
            ON CONFLICT (tenant) DO UPDATE SET bytes = storage_use.bytes + excluded.bytes"""  # noqa: S608 - names of ours
        )


def _counting_sqlite() -> Iterator[str]:
    """A table that is changed by making another in its place loses these, and must be given them again."""
    yield """CREATE TRIGGER threads_counted AFTER INSERT ON threads BEGIN
        INSERT INTO storage_use (tenant, threads, bytes) VALUES (NEW.tenant, 1, 0)
        ON CONFLICT (tenant) DO UPDATE SET threads = threads + 1; END"""
    yield """CREATE TRIGGER threads_uncounted AFTER DELETE ON threads BEGIN
        UPDATE storage_use SET threads = threads - 1 WHERE tenant = OLD.tenant; END"""
    for table, (_, whose) in _COUNTED.items():
        new, old = (_bytes_of(table, row, "sqlite") for row in ("NEW", "OLD"))
        yield f"""CREATE TRIGGER {table}_counted AFTER INSERT ON {table} BEGIN
            UPDATE storage_use SET bytes = bytes + {new} WHERE tenant = {whose.format(row="NEW")}; END"""  # noqa: S608
        yield f"""CREATE TRIGGER {table}_uncounted AFTER DELETE ON {table} BEGIN
            UPDATE storage_use SET bytes = bytes - ({old}) WHERE tenant = {whose.format(row="OLD")}; END"""  # noqa: S608
        if (column := _CHANGING.get(table)) is not None:
            yield f"""CREATE TRIGGER {table}_recounted AFTER UPDATE OF {column} ON {table}
                WHEN NEW.{column} IS NOT OLD.{column} BEGIN
                UPDATE storage_use SET bytes = bytes + {new} - ({old}) WHERE tenant = {whose.format(row="NEW")}; END"""  # noqa: S608


def _counting_postgresql() -> Iterator[str]:
    """What one statement changes is counted at once: a row each would leave as many dead versions of the count."""
    yield """CREATE FUNCTION count_threads() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN UPDATE storage_use SET threads = threads - 1 WHERE tenant = OLD.tenant;
        ELSE INSERT INTO storage_use (tenant, threads, bytes) VALUES (NEW.tenant, 1, 0)
            ON CONFLICT (tenant) DO UPDATE SET threads = storage_use.threads + 1;
        END IF; RETURN NULL; END $$"""
    yield """CREATE TRIGGER threads_counted AFTER INSERT OR DELETE ON threads
        FOR EACH ROW EXECUTE FUNCTION count_threads()"""
    for table, (_, whose) in _COUNTED.items():
        new, old = (_bytes_of(table, row, "postgresql") for row in ("NEW", "OLD"))
        yield f"""CREATE FUNCTION count_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
            FROM (SELECT {whose.format(row="r")} AS tenant, CAST(sum({_bytes_of(table, "r", "postgresql")}) AS bigint)
                AS bytes FROM changed r GROUP BY 1) c
            WHERE u.tenant = c.tenant; RETURN NULL; END $$"""  # noqa: S608
        for name, when, which in (("counted", "INSERT", "NEW"), ("uncounted", "DELETE", "OLD")):
            yield f"""CREATE TRIGGER {table}_{name} AFTER {when} ON {table} REFERENCING {which} TABLE AS changed
                FOR EACH STATEMENT EXECUTE FUNCTION count_{table}()"""
        if (column := _CHANGING.get(table)) is not None:
            yield f"""CREATE FUNCTION recount_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                UPDATE storage_use SET bytes = bytes + {new} - ({old}) WHERE tenant = {whose.format(row="NEW")};
                RETURN NULL; END $$"""  # noqa: S608
            yield f"""CREATE TRIGGER {table}_recounted AFTER UPDATE OF {column} ON {table} FOR EACH ROW
                WHEN (NEW.{column} IS DISTINCT FROM OLD.{column}) EXECUTE FUNCTION recount_{table}()"""


def _uncounting(dialect: str) -> Iterator[str]:
    """What takes the counting away again."""
    if dialect == "sqlite":
        for table in ("threads", *_COUNTED):
            for name in ("counted", "uncounted", *(("recounted",) if table in _CHANGING else ())):
                yield f"DROP TRIGGER {table}_{name}"
    else:
        for name in ("count_threads", *(f"count_{table}" for table in _COUNTED), *(f"recount_{t}" for t in _CHANGING)):
            yield f"DROP FUNCTION {name}() CASCADE"


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("name", sa.String(length=128), nullable=False, server_default=""))
        table.add_column(sa.Column("expires_us", sa.BigInteger()))
        table.add_column(sa.Column("replaced_by", sa.String(length=64)))
        table.add_column(sa.Column("request_id", sa.String(length=128)))
        table.add_column(sa.Column("request_digest", sa.String(length=64)))
        table.add_column(sa.Column("used_us", sa.BigInteger()))
        table.create_unique_constraint("uq_api_keys_request_id", ["request_id"])
    with op.batch_alter_table("threads") as table:
        table.add_column(sa.Column("engine", sa.String(length=128)))
        table.add_column(sa.Column("used_us", sa.BigInteger()))
        table.add_column(sa.Column("deletion", sa.String(length=64)))
        table.create_index("ix_threads_tenant_created", ["tenant", "created_us", "id"])
    with op.batch_alter_table("runs") as table:
        table.alter_column("suspended", new_column_name="checkpoint", existing_type=sa.Text())
        table.add_column(sa.Column("epoch", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("cancel_us", sa.BigInteger()))
        table.add_column(sa.Column("started_by", sa.String(length=128), nullable=False, server_default=""))
        table.add_column(sa.Column("request_id", sa.String(length=128)))
        table.add_column(sa.Column("request_digest", sa.String(length=64)))
        table.create_unique_constraint("uq_runs_request_id", ["tenant", "request_id"])
        table.create_index("ix_runs_tenant_started", ["tenant", "started_us"])
    op.create_index(
        "uq_runs_under_way",
        "runs",
        ["thread_id"],
        unique=True,
        sqlite_where=sa.text(_UNDER_WAY),
        postgresql_where=sa.text(_UNDER_WAY),
    )
    with op.batch_alter_table("tool_calls") as table:
        table.add_column(sa.Column("read_only", sa.Boolean(), nullable=False, server_default=sa.text("false")))
        table.add_column(sa.Column("result", sa.Text()))
        table.add_column(sa.Column("request_id", sa.String(length=128)))
        table.add_column(sa.Column("request_digest", sa.String(length=64)))
        table.create_unique_constraint("uq_tool_calls_request_id", ["tenant", "request_id"])
    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )
    op.create_table(
        "gateways",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("engine", sa.String(length=128), nullable=False),
        sa.Column("channels", sa.Text(), nullable=False),
        sa.Column("address", sa.String(length=256), nullable=False, server_default=""),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gateways")),
    )
    op.create_table(
        "audit_records",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("thread", sa.String(length=256), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=128), nullable=False),
        sa.Column("arguments_digest", sa.String(length=64), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("policy_version", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("duration_us", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous_digest", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "sequence", name=op.f("pk_audit_records")),
    )
    op.create_index("ix_audit_records_tenant", "audit_records", ["tenant", "at_us"])
    op.create_index("ix_audit_records_run_id", "audit_records", ["tenant", "run_id"])
    op.create_table(
        "audit_heads",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("first_sequence", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("before_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_audit_heads")),
    )
    # Until now nobody noted it: the last run tells.
    op.execute(
        "UPDATE threads SET used_us = "
        "(SELECT max(coalesce(r.finished_us, r.started_us)) FROM runs r WHERE r.thread_id = threads.id)"
    )
    op.create_table(
        "storage_use",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("threads", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_storage_use")),
    )
    # A call that did not execute was over as it was written, and did not say so: retention never found it.
    op.execute("UPDATE tool_calls SET finished_us = started_us WHERE finished_us IS NULL AND state <> 'executing'")
    dialect = op.get_bind().dialect.name
    _count_what_is_there(dialect)
    counting = _counting_sqlite() if dialect == "sqlite" else _counting_postgresql()
    for statement in (*_GUARDS[dialect], *_refusing(dialect), *counting):
        op.execute(sa.text(statement))


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for statement in _uncounting(dialect):
        op.execute(statement)
    if dialect == "sqlite":
        for table in _BEGINS:
            op.execute(f"DROP TRIGGER {table}_refused")
    else:
        op.execute("DROP FUNCTION refuse_beginning() CASCADE")
    for table in ("audit_heads", "audit_records", "gateways", "settings", "storage_use"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_records_guard()")
        op.execute("DROP FUNCTION audit_heads_guard()")
    with op.batch_alter_table("tool_calls") as changed:
        changed.drop_constraint("uq_tool_calls_request_id", type_="unique")
        for column in ("request_digest", "request_id", "result", "read_only"):
            changed.drop_column(column)
    op.drop_index("uq_runs_under_way", "runs")
    with op.batch_alter_table("runs") as changed:
        changed.drop_index("ix_runs_tenant_started")
        changed.drop_constraint("uq_runs_request_id", type_="unique")
        for column in ("request_digest", "request_id", "started_by", "cancel_us", "epoch"):
            changed.drop_column(column)
        changed.alter_column("checkpoint", new_column_name="suspended", existing_type=sa.Text())
    with op.batch_alter_table("threads") as changed:
        changed.drop_index("ix_threads_tenant_created")
        for column in ("deletion", "used_us", "engine"):
            changed.drop_column(column)
    with op.batch_alter_table("api_keys") as changed:
        changed.drop_constraint("uq_api_keys_request_id", type_="unique")
        for column in ("used_us", "request_digest", "request_id", "replaced_by", "expires_us", "name"):
            changed.drop_column(column)
