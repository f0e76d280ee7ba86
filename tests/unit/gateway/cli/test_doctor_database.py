"""What `airlock doctor --config` says of a database, without a change to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.cli.doctor_config import database_finding
from gateway.cli.finding import Finding
from gateway.config.config import Config
from gateway.storage.connecting import connect
from gateway.storage.migration import NEWEST, revision_of, upgrade
from tests.unit.gateway.later_release import LATER, become_later_release


@pytest.fixture
def config(tmp_path: Path, empty_url: str) -> Path:
    path = tmp_path / "airlock.yaml"
    path.write_text(f"database_url: {empty_url}\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8")
    return path


def _database(path: Path) -> Finding:
    return database_finding(Config.load(path))


def test_it_names_the_revision_and_what_the_next_start_makes_of_it(
    config: Path, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(empty_url)
    upgrade(engine)
    assert (_database(config).state, NEWEST in _database(config).detail) == ("ok", True)
    with monkeypatch.context() as later:
        become_later_release(later, tmp_path)
        found = _database(config)
        assert (found.state, "backup" in found.fix) == ("warning", True)
        assert f"revision {NEWEST}: the next start upgrades it to {LATER}" in found.detail
        assert revision_of(empty_url).current == NEWEST
        upgrade(engine)
    newer = _database(config)
    assert (newer.state, "newer airlock" in newer.fix) == ("failed", True)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    older = _database(config)
    assert (older.state, "unreleased airlock" in older.fix) == ("failed", True)
    engine.dispose()


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    config = tmp_path / "airlock.yaml"
    config.write_text("tenants: {t: {policy: t.yaml}}\n", encoding="utf-8")
    assert _database(config).state == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["airlock.yaml"]


def test_a_database_that_does_not_open_says_why_and_never_the_password(tmp_path: Path) -> None:
    config = tmp_path / "airlock.yaml"
    url = f"postgresql://someone:secret@/x?host={tmp_path}"
    config.write_text(f"database_url: {url}\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8")
    found = _database(config)
    assert (found.state, "secret" in found.fix) == ("failed", False)
    assert "No such file" in found.fix


def test_a_database_that_lacks_a_table_of_its_revision_is_a_failure(config: Path, empty_url: str) -> None:
    engine = connect(empty_url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE workspace_requests"))
    engine.dispose()
    found = _database(config)
    assert (found.state, "lacks table workspace_requests" in found.detail) == ("failed", True)


def test_a_password_file_that_is_missing_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "airlock.yaml"
    config.write_text(
        "database_url: postgresql://someone@/x\ndatabase_password_file: none\ntenants: {t: {policy: t.yaml}}\n",
        encoding="utf-8",
    )
    found = _database(config)
    assert (found.state, "database_password_file" in found.fix) == ("failed", True)
