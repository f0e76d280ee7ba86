"""Snapshots of threads whose messages retention has removed count no messages any more.

Their positions began at 0 again, so a fork of such a snapshot had what was said later.

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Retention removes all messages of a thread at once: what a later run said at position 0 shows that it did.
    op.execute(
        "UPDATE snapshots SET messages = 0 WHERE EXISTS (SELECT 1 FROM messages JOIN runs ON runs.id = messages.run_id "
        "WHERE messages.thread_id = snapshots.thread_id AND messages.position = 0 "
        "AND runs.started_us > snapshots.created_us)"
    )
    op.execute(
        "UPDATE snapshots SET messages = 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM messages WHERE messages.thread_id = snapshots.thread_id)"
    )


def downgrade() -> None:
    pass
