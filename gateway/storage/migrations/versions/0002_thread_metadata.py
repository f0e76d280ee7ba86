"""What lasts as long as the thread.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "thread_metadata",
        sa.Column("thread_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_thread_metadata_thread_id")),
        sa.PrimaryKeyConstraint("thread_id", "key", name=op.f("pk_thread_metadata")),
    )


def downgrade() -> None:
    op.drop_table("thread_metadata")
