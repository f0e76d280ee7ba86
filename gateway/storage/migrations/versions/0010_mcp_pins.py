"""Which tools of MCP servers were accepted is on record.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mcp_pins",
        *(sa.Column(name, sa.String(64), primary_key=True) for name in ("tenant", "agent", "server")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("pinned", "seen", "left_out")),
        *(sa.Column(name, sa.String(64), nullable=False) for name in ("pinned_digest", "seen_digest")),
        sa.Column("pinned_by", sa.String(256), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("pinned_us", "seen_us")),
    )


def downgrade() -> None:
    op.drop_table("mcp_pins")
