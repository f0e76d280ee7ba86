"""docs/operations.md, done: the backup of a gateway that runs, restored where neither state nor files are left."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.client import Client, OtherEngine
from tests.docker_state import volumes_of
from tests.gateway_process import airlock, make_home, served

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def backup_and_restore(directory: Path) -> tuple[str, str]:
    """Return what the page has an operator type, for SQLite and with another directory than /backup."""
    section = PAGE.read_text(encoding="utf-8").split("## How do I back it up?\n")[1].split("\n## ")[0]
    typed = re.sub(r"^pg_dump .*$", "", section, flags=re.MULTILINE).replace("/backup", str(directory))
    database, files, unpacked = _BLOCK.findall(typed)
    return f"{database}\n{files}", unpacked


def run(script: str, directory: Path) -> None:
    subprocess.run(["bash", "-c", f"set -eu\n{script}"], cwd=directory, check=True, timeout=120)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the page uses the command sqlite3")
async def test_a_restored_backup_has_its_threads_and_files(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"keep_workspaces": True})
    state, backup = home.config.parent / "state", tmp_path / "backup"
    backup.mkdir()
    back_up, unpack = backup_and_restore(backup)
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("t", "/workspace/a", b"kept")
        run(back_up, home.config.parent)
        async with Client(gateway.address, home.key) as client:
            await client.write_file("later", "/workspace/b", b"after the backup")
    instance = home.instance
    run(f"docker volume rm {' '.join(volumes_of(instance))}", tmp_path)
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    shutil.copyfile(backup / "airlock.db", state / "airlock.db")
    (state / "airlock.db").chmod(0o600)
    # As on another machine: the threads are on an engine that is not this one.
    run("""sqlite3 state/airlock.db "UPDATE threads SET engine = 'gone'" """, home.config.parent)
    home.configure(sandbox={"keep_workspaces": False})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            with pytest.raises(OtherEngine, match="gone"):
                await client.call_tool("ls", {"path": "/workspace"}, thread="t")
            adopting = ("thread", "adopt", "gone", "--yes", "--config", str(home.config))
            assert "1 threads of 1 tenants" in (await asyncio.to_thread(airlock, *adopting)).stdout
            assert (await client.call_tool("ls", {"path": "/workspace"}, thread="t")).verdict == "allow"
            run(unpack, home.config.parent)
            assert await client.read_file("t", "/workspace/a") == b"kept"
            await client.write_file("t", "/workspace/a", b"still its own")
            assert [thread.name async for thread in client.list_threads()] == ["t"]
        assert home.instance == instance
    assert volumes_of(instance) == []
