"""Threads that E2B's SDKs see as sandboxes.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "e2b_sandboxes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column(
            "thread_id", sa.String(64), sa.ForeignKey("threads.id", name="fk_e2b_sandboxes_thread_id"), nullable=False
        ),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("ends_us", sa.BigInteger()),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("key_ids", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
    )
    op.create_index("ix_e2b_sandboxes_thread_id", "e2b_sandboxes", ["thread_id"])
    op.create_index("ix_e2b_sandboxes_ends_us", "e2b_sandboxes", ["ends_us"])
    op.create_index("ix_e2b_sandboxes_tenant_created", "e2b_sandboxes", ["tenant", "created_us", "id"])


def downgrade() -> None:
    op.drop_table("e2b_sandboxes")
