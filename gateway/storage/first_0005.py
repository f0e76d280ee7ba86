"""Completes databases of the first form of migration 0005, which was edited after databases had been created with it.

The next migrations need the later form. No other migration was edited after its release, and none will be
(tests/unit/gateway/storage/test_frozen_migrations.py).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

REVISION = "0005"


def complete(connection: sa.Connection) -> None:
    """Add what the first form lacks to a database of revision 0005; one of the later form stays as it is."""
    op = Operations(MigrationContext.configure(connection))
    inspector = sa.inspect(connection)
    if "kind" not in {column["name"] for column in inspector.get_columns("snapshots")}:
        _complete_snapshots(op)
    if not inspector.has_table("workspace_requests"):
        _create_workspace_requests(op)
    if "ix_sandbox_transitions_sandbox" not in {one["name"] for one in inspector.get_indexes("sandbox_transitions")}:
        op.create_index("ix_sandbox_transitions_sandbox", "sandbox_transitions", ["sandbox", "id"])


def _complete_snapshots(op: Operations) -> None:
    """Give each snapshot its thread's id. All of them were taken on request, as there were no others then."""
    with op.batch_alter_table("snapshots") as table:
        table.add_column(sa.Column("thread_id", sa.String(length=64)))
        table.add_column(sa.Column("kind", sa.String(length=8)))
        table.add_column(sa.Column("step", sa.Integer()))
    op.execute(
        "UPDATE snapshots SET kind = 'asked', step = 0, thread_id = COALESCE((SELECT threads.id FROM threads "
        "WHERE threads.tenant = snapshots.tenant AND threads.name = snapshots.thread), '')"
    )
    with op.batch_alter_table("snapshots") as table:
        table.alter_column("thread_id", existing_type=sa.String(length=64), nullable=False)
        table.alter_column("kind", existing_type=sa.String(length=8), nullable=False)
        table.alter_column("step", existing_type=sa.Integer(), nullable=False)
    op.create_index("ix_snapshots_thread_id", "snapshots", ["thread_id", "run_id", "step"])


def _create_workspace_requests(op: Operations) -> None:
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
