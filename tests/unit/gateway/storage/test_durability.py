"""An acknowledged write is on the disk: how SQLite is configured, and what it then asks of the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sqlalchemy import Connection

from gateway.storage.database import Database
from tests.strace import needs_strace

_COMMITS = """
import asyncio, sys
from sqlalchemy import text
from gateway.storage.database import Database

async def main():
    database = await Database.open(sys.argv[1])
    for number in range(int(sys.argv[2])):
        row = {"name": f"name {number}", "value": "x"}
        await database.write((text("INSERT INTO settings (name, value) VALUES (:name, :value)"), row))
    await database.close()

asyncio.run(main())
"""


async def test_every_connection_that_writes_waits_for_the_disk(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")

    def pragma(connection: Connection) -> object:
        return connection.exec_driver_sql("PRAGMA synchronous").scalar()

    try:
        assert await database.transact(pragma) == 2  # FULL
    finally:
        await database.close()


def _syncs(directory: Path, commits: int) -> int:
    """Return how often a process that commits so many times asks the kernel for what it wrote to be on the disk."""
    directory.mkdir()
    log = directory / "strace"
    command = [sys.executable, "-c", _COMMITS, f"sqlite:///{directory}/airlock.db", str(commits)]
    strace = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(log)]
    subprocess.run([*strace, *command], check=True, timeout=120)
    return sum(" resumed>" not in line and "sync(" in line for line in log.read_text().splitlines())


@needs_strace
def test_each_commit_is_synced_to_the_disk(tmp_path: Path) -> None:
    assert _syncs(tmp_path / "many", 25) - _syncs(tmp_path / "few", 5) >= 20
