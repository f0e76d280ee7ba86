"""Policies in versions, approvals and what they grant, quotas, scopes of keys, and which gateway hosts what.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("scopes", sa.String(length=128), nullable=False, server_default="run,tool,files"))
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("gateway", sa.String(length=64)))
        table.add_column(sa.Column("policy_mode", sa.String(length=8), nullable=False, server_default="pin"))
        table.add_column(sa.Column("suspended", sa.Text()))
    with op.batch_alter_table("tool_calls") as table:
        table.add_column(sa.Column("gateway", sa.String(length=64)))
        table.add_column(sa.Column("would_be", sa.String(length=16)))
        table.add_column(sa.Column("would_be_rule", sa.String(length=128)))
        table.add_column(sa.Column("approval_id", sa.String(length=64)))
        table.create_index("ix_tool_calls_tenant", ["tenant", "started_us"])
    op.create_table(
        "policies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_policies")),
    )
    op.create_table(
        "policy_changes",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("by", sa.String(length=256), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["policies.digest"], name=op.f("fk_policy_changes_digest")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_policy_changes_tenant"), "policy_changes", ["tenant"])
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64)),
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=128), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("arguments_bytes", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("policy_version", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("proposed_rule", sa.Text()),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.String(length=16)),
        sa.Column("message", sa.Text()),
        sa.Column("edited_arguments", sa.Text()),
        sa.Column("edited_digest", sa.String(length=64)),
        sa.Column("resolved_by", sa.String(length=128)),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("resolved_us", sa.BigInteger()),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_approvals_thread_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index(op.f("ix_approvals_run_id"), "approvals", ["run_id"])
    op.create_index("ix_approvals_tenant", "approvals", ["tenant", "status"])
    op.create_index("ix_approvals_thread_id", "approvals", ["thread_id", "digest"])
    op.create_index("ix_approvals_changed_us", "approvals", ["changed_us"])
    op.create_table(
        "grants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64)),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("approval_id", sa.String(length=64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("revoked_us", sa.BigInteger()),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_grants_thread_id")),
        sa.ForeignKeyConstraint(["approval_id"], ["approvals.id"], name=op.f("fk_grants_approval_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index(op.f("ix_grants_thread_id"), "grants", ["thread_id"])
    op.create_table(
        "counters",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=160), nullable=False),
        sa.Column("window_us", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "window_us", name=op.f("pk_counters")),
    )
    op.create_table(
        "holds",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=160), nullable=False),
        sa.Column("gateway", sa.String(length=64), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
    )
    op.create_index("ix_holds_tenant", "holds", ["tenant", "name"])


def downgrade() -> None:
    for table in ("holds", "counters", "grants", "approvals", "policy_changes", "policies"):
        op.drop_table(table)
    with op.batch_alter_table("tool_calls") as changed:
        changed.drop_index("ix_tool_calls_tenant")
        for column in ("approval_id", "would_be_rule", "would_be", "gateway"):
            changed.drop_column(column)
    with op.batch_alter_table("runs") as changed:
        for column in ("suspended", "policy_mode", "gateway"):
            changed.drop_column(column)
    with op.batch_alter_table("api_keys") as changed:
        changed.drop_column("scopes")
