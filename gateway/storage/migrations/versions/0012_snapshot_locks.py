"""Locks on snapshots in a bucket, which gateways without a shared disk share.

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshot_locks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("scope", sa.String(128), nullable=False),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_snapshot_locks_scope", "snapshot_locks", ["scope"])


def downgrade() -> None:
    op.drop_table("snapshot_locks")
