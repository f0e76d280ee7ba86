"""Connections of sandboxes are on record while they are open.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "open_connections",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("gateway", sa.String(64), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("open_connections")
