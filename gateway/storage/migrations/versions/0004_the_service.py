"""Leases and checkpoints of runs, request ids, keys that expire, and the audit.

Revision ID: 0004
Revises: 0003
"""

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


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("name", sa.String(length=128), nullable=False, server_default=""))
        table.add_column(sa.Column("expires_us", sa.BigInteger()))
        table.add_column(sa.Column("replaced_by", sa.String(length=64)))
    with op.batch_alter_table("threads") as table:
        table.add_column(sa.Column("engine", sa.String(length=128)))
        table.create_index("ix_threads_tenant_created", ["tenant", "created_us", "id"])
    with op.batch_alter_table("runs") as table:
        table.alter_column("suspended", new_column_name="checkpoint", existing_type=sa.Text())
        table.add_column(sa.Column("epoch", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("cancel_us", sa.BigInteger()))
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
    for guard in _GUARDS[op.get_bind().dialect.name]:
        op.execute(sa.text(guard))


def downgrade() -> None:
    for table in ("audit_heads", "audit_records", "gateways", "settings"):
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
        for column in ("request_digest", "request_id", "cancel_us", "epoch"):
            changed.drop_column(column)
        changed.alter_column("checkpoint", new_column_name="suspended", existing_type=sa.Text())
    with op.batch_alter_table("threads") as changed:
        changed.drop_index("ix_threads_tenant_created")
        changed.drop_column("engine")
    with op.batch_alter_table("api_keys") as changed:
        for column in ("replaced_by", "expires_us", "name"):
            changed.drop_column(column)
