"""docs/operations.md, done: a backup restored onto an empty machine, pooled sandboxes removed by hand."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import uuid
from itertools import count
from pathlib import Path

import pytest

from gateway.client import Client, OtherEngine
from tests.docker_state import volumes_of
from tests.gateway_process import airlock, make_home, served

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def section(heading: str) -> str:
    """Return what the page says under a heading."""
    return PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]


def backup_and_restore(directory: Path) -> tuple[str, str]:
    """Return what the page has an operator type, for SQLite and with another directory than /backup."""
    said = section("How do I back it up?")
    typed = re.sub(r"^pg_dump .*$", "", said, flags=re.MULTILINE).replace("/backup", str(directory))
    database, files, unpacked = _BLOCK.findall(typed)
    return f"{database}\n{files}", unpacked


def run(script: str, directory: Path) -> None:
    subprocess.run(["bash", "-c", f"set -eu\n{script}"], cwd=directory, check=True, timeout=120)


def make_volume(name: str, **labels: str) -> None:
    """Make a volume as a gateway does."""
    named = [f"--label=airlock.{label}={value}" for label, value in labels.items()]
    subprocess.run(["docker", "volume", "create", *named, name], capture_output=True, check=True)


async def thread_of_the_pool(client: Client) -> str:
    """Return a new thread whose sandbox was a pooled sandbox; until one is ready, others have theirs made."""
    for number in count():
        thread = f"pool-{number}"
        await client.write_file(thread, "/workspace/a", thread.encode())
        if (await client.get_sandbox(thread)).id.startswith("pool-"):
            return thread
        await client.delete_thread(thread)
    raise AssertionError("unreachable")


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3: apt-get install sqlite3")
async def test_a_restored_backup_has_its_threads_and_files(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"keep_workspaces": True})
    state, backup = home.config.parent / "state", tmp_path / "backup"
    backup.mkdir()
    back_up, unpack = backup_and_restore(backup)
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("t", "/workspace/a", b"kept")
    home.configure(sandbox={"pool_limit": 2})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            pooled = await thread_of_the_pool(client)
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
    run(unpack, home.config.parent)
    home.configure(sandbox={"keep_workspaces": False})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            with pytest.raises(OtherEngine, match="gone"):
                await client.call_tool("ls", {"path": "/workspace"}, thread="t")
            adopting = ("thread", "adopt", "gone", "--yes", "--config", str(home.config))
            assert "2 threads of 1 tenants" in (await asyncio.to_thread(airlock, *adopting)).stdout
            assert (await client.call_tool("ls", {"path": "/workspace"}, thread="t")).verdict == "allow"
            for thread, kept in (("t", b"kept"), (pooled, pooled.encode())):
                assert await client.read_file(thread, "/workspace/a") == kept
                await client.write_file(thread, "/workspace/a", b"still its own")
                assert await client.read_file(thread, "/workspace/a") == b"still its own"
            assert {thread.name async for thread in client.list_threads()} == {"t", pooled}
        assert home.instance == instance
    assert volumes_of(instance) == []


def test_the_page_removes_the_pools_unclaimed_volumes(tmp_path: Path) -> None:
    instance = uuid.uuid4().hex[:12]
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance").write_text(f"{instance}\n")
    own, pooled, taken = (f"airlock-{instance}-workspace-{name}" for name in ("t", "pool-1", "pool-12"))
    try:
        make_volume(own, instance=instance, kind="workspace", thread="t", held="pool-12")
        for volume, name in ((pooled, "pool-1"), (taken, "pool-12")):
            make_volume(volume, instance=instance, kind="workspace", pool=name)
        containers, volumes = _BLOCK.findall(section("How does it start and stop?"))
        run(f"{containers}\n{volumes}", tmp_path)
        assert set(volumes_of(instance)) == {own, taken}
    finally:
        run(f"docker volume rm -f {own} {pooled} {taken}", tmp_path)
