"""Snapshots of workspaces, and what became of sandboxes.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("thread", sa.String(length=256), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=256), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("messages", sa.Integer(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("skipped", sa.Integer(), nullable=False),
        sa.Column("stripped", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=128)),
        sa.Column("request_digest", sa.String(length=64)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
        sa.UniqueConstraint("tenant", "request_id", name="uq_snapshots_request_id"),
    )
    op.create_index("ix_snapshots_tenant_created", "snapshots", ["tenant", "created_us", "id"])
    op.create_index("ix_snapshots_thread_id", "snapshots", ["thread_id", "run_id", "step"])
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
    op.create_table(
        "sandbox_transitions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("engine", sa.String(length=128), nullable=False),
        sa.Column("sandbox", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=512), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_sandbox_transitions_thread_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandbox_transitions")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sandbox_transitions_thread_id", "sandbox_transitions", ["thread_id", "id"])
    op.create_index("ix_sandbox_transitions_tenant", "sandbox_transitions", ["tenant", "id"])
    op.create_index("ix_sandbox_transitions_sandbox", "sandbox_transitions", ["sandbox", "id"])
    op.create_index(op.f("ix_sandbox_transitions_at_us"), "sandbox_transitions", ["at_us"])


def downgrade() -> None:
    op.drop_table("sandbox_transitions")
    op.drop_table("workspace_requests")
    op.drop_table("snapshots")
