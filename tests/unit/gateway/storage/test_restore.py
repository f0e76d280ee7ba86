"""A restored PostgreSQL database belongs to the role that serves it, as docs/storage.md has it restored."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.storage.connecting import connect
from gateway.storage.migration import NEWEST, downgrade, revision_of, upgrade
from tests.unit.gateway.later_release import LATER, become_later_release

DOCS = Path(__file__).parents[4] / "docs" / "storage.md"
ROLE = "airlock_serving"


def _documented() -> list[str]:
    """Return the two commands of the restore."""
    found = re.search(r"`(createdb .*?) && (pg_restore .*?)`", DOCS.read_text(encoding="utf-8"))
    assert found is not None
    return [found[1], found[2]]


@pytest.fixture
def server(postgres_url: str) -> Iterator[str]:
    """An administrator's URL, where there is a role that serves."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {ROLE} LOGIN")
        yield postgres_url
        for name in ("source", "restored"):
            admin.execute(f"DROP DATABASE IF EXISTS airlock_{name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {ROLE}")


@pytest.mark.skipif(shutil.which("pg_restore") is None, reason="needs pg_restore: apt-get install postgresql-client")
def test_the_documented_restore_leaves_a_database_that_the_serving_role_can_migrate(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = conninfo_to_dict(server)
    admin = {"PGHOST": str(facts["host"]), "PGUSER": str(facts["user"]), "PATH": "/usr/bin:/bin"}

    def run(command: str) -> None:
        subprocess.run(shlex.split(command), env=admin, check=True, timeout=60, cwd=tmp_path, capture_output=True)

    def url(name: str) -> str:
        return server.replace(f"{facts['user']}@/{facts['dbname']}", f"{ROLE}@/airlock_{name}")

    run(f"createdb -O {ROLE} airlock_source")
    source = connect(url("source"))
    upgrade(source)
    source.dispose()
    run("pg_dump -Fc -f airlock.dump airlock_source")
    for command in _documented():
        run(command.replace("USER", ROLE).replace("NEW", "airlock_restored"))
    restored = connect(url("restored"))
    become_later_release(monkeypatch, tmp_path)
    upgrade(restored)
    assert revision_of(url("restored")).current == LATER
    downgrade(restored, NEWEST)
    restored.dispose()
