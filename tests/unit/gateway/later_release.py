"""A later release, which has one more migration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.storage import migration

LATER = "9000"
_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "{migration.NEWEST}"


def upgrade() -> None:
    with op.batch_alter_table("threads") as table:
        table.add_column(sa.Column("later", sa.Text()))
    op.execute("UPDATE threads SET later = name")


def downgrade() -> None:
    op.drop_column("threads", "later")
"""


def become_later_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have gateway.storage.migration be of the later release, which adds the column threads.later."""
    migrations = tmp_path / "migrations"
    shutil.copytree(Path(migration.__file__).parent / "migrations", migrations)
    (migrations / "versions" / f"{LATER}_later.py").write_text(_MIGRATION, encoding="utf-8")
    monkeypatch.setattr(migration, "_MIGRATIONS", migrations)
    monkeypatch.setattr(migration, "NEWEST", LATER)
