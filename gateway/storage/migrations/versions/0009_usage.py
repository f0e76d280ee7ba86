"""What runs use of models is on record, and each run's number of steps.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COUNTED = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
_USED = (*_COUNTED, "estimated_tokens", "nano_usd")


def upgrade() -> None:
    op.create_table(
        "run_usage",
        sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.id", name="fk_run_usage_run_id"), primary_key=True),
        sa.Column("agent", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _USED),
        *(sa.Column(f"open_{name}", sa.BigInteger(), nullable=False) for name in _USED),
        sa.Column("first_token_us", sa.BigInteger()),
    )
    op.create_table(
        "usage_days",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("day_us", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("agent", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _USED),
    )
    op.add_column("runs", sa.Column("steps", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("runs", "steps")
    op.drop_table("usage_days")
    op.drop_table("run_usage")
