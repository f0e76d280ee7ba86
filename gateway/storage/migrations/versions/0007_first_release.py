"""The schema of the first release.

It was created from tables.py and triggers.py, as every new database is at its newest revision (migration.py): later
migrations start here.

Revision ID: 0007
Revises:
"""

from alembic.util import CommandError

revision = "0007"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    raise CommandError("databases before the first release are not upgraded")


def downgrade() -> None:
    raise CommandError("0007 is the first release")
