"""A sandbox that is killed in the middle of a write: its workspace has the old file and nothing beside it.

The container gets SIGKILL as from `docker kill`, and then the volume is looked at from the host.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import DaemonLost
from sandbox.sandbox import Sandbox
from tests.docker_state import containers_of, mountpoint_of, volumes_of
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, removed, run, spec

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def own(tmp_path: Path) -> AsyncIterator[tuple[DockerEngine, str]]:
    """An engine of its own, so that there is one container and one workspace to look at."""
    instance = instance_id()
    made = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    yield made, instance
    await removed(made, instance)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()


def workspace(instance: str) -> Path:
    (volume,) = (name for name in volumes_of(instance) if "-workspace-" in name)
    return mountpoint_of(volume)


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def open_files(container: str) -> str:
    """Return what the sandbox's processes have open below the workspace, as their /proc says."""
    pids = docker("top", container, "-eo", "pid").split()[1:]
    found = [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]
    return "\n".join(str(path.readlink()) for path in found if path.is_symlink())


async def killed_while_writing(sandbox: Sandbox, container: str, path: str) -> None:
    """Send 3 MiB of a file, see that the daemon has them in a file, and kill the container."""
    taken = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"new" * 1024 * 1024
        # The next piece is asked for when the daemon's socket has taken this one.
        yield b"new"
        taken.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(sandbox.files.write(path, pieces()))
    await taken.wait()
    async with asyncio.timeout(30):
        while "(deleted)" not in await asyncio.to_thread(open_files, container):
            await asyncio.sleep(0.01)
    await asyncio.to_thread(docker, "kill", "--signal", "KILL", container)
    with pytest.raises(DaemonLost):
        await writing


async def test_a_container_killed_in_the_middle_of_an_upload_leaves_the_old_file_and_no_other(
    own: tuple[DockerEngine, str],
) -> None:
    engine, instance = own
    for path, old in (("a", {"a": b"old"}), ("deep/new", {"a": b"old"})):
        sandbox = await engine.create(spec("killed"))
        await sandbox.files.write("/workspace/a", b"old")
        (container,) = containers_of(instance)
        await killed_while_writing(sandbox, container, f"/workspace/{path}")
        assert files_in(workspace(instance)) == old
        await engine.remove(sandbox.id)


async def test_writes_and_edits_killed_at_any_moment_leave_whole_files_and_the_next_start_tidies_up(
    own: tuple[DockerEngine, str],
) -> None:
    engine, instance = own
    sizes = {2_000_000, 2_000_001}
    for _ in range(3):
        sandbox = await engine.create(replace(spec("killed"), limits=replace(spec().limits, pids=200)))
        (container,) = containers_of(instance)
        await sandbox.files.write("/workspace/a", b"x" * 2_000_000)
        count = 0

        async def rewrite(box: Sandbox = sandbox) -> None:
            nonlocal count
            while True:
                await box.files.write("/workspace/a", b"x" * (2_000_000 + count % 2))
                await box.files.edit("/workspace/a", b"xx", b"xx")
                count += 1

        writing = asyncio.create_task(rewrite())
        async with asyncio.timeout(30):
            while count < 5:
                await asyncio.sleep(0.001)
        await asyncio.to_thread(docker, "kill", "--signal", "KILL", container)
        with pytest.raises(DaemonLost):
            await writing
        left = files_in(workspace(instance))
        assert len(left.pop("a")) in sizes
        # A rename over a file goes by way of a name; killed in its microseconds, that lies where the next start looks.
        assert all(name.startswith(".airlock-") for name in left), left
        await engine.remove(sandbox.id)
    sandbox = await engine.create(spec("killed"))
    await run(sandbox.shell, "touch .airlock-mine.tmp")
    assert set(files_in(workspace(instance))) == {"a", ".airlock-mine.tmp"}
