"""The file systems that the conformance suite is run on, each with an empty directory at /workspace/case.

`files`, `inside` and `shared` are fixtures, which conftest.py brings to every module of this folder.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agent.filesystem import FileSystem
from sandbox.client.channel import Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.tls_address import TlsAddress
from sandbox.client.unix_address import SOCKET_NAME
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.local.local_fs import LocalFS
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import LIMITS, run, spec, text
from tests.relayed_process import INSTANCE, NAME, RelayProcess

HOME = f"{WORKSPACE}/case"
FULL_BYTES = 32 * 1024 * 1024


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    # Room for sparse files of gigabytes, and a /tmp that is soon full.
    limits = replace(LIMITS, workspace_bytes=8 * 1024**3, tmp_bytes=FULL_BYTES)
    made = await engine.create(replace(spec("conformance"), limits=limits))
    yield made
    await engine.remove(made.id)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def relayed(
    engine: DockerEngine, shared: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FileSystem]:
    """The files of the same sandbox, by the channel over TCP."""
    keys = tmp_path_factory.mktemp("keys")
    authority = ChannelAuthority.open(keys / "channels.pem", INSTANCE)
    relay = RelayProcess(
        engine.channel_root / shared.id / SOCKET_NAME, keys, authority, authority.sandbox_identity(NAME)
    )
    try:
        port = await asyncio.to_thread(relay.ready)
        with closing(Channel(TlsAddress("127.0.0.1", port, NAME, authority.contexts))) as channel:
            yield RemoteFS(channel)
    finally:
        relay.end()


@pytest_asyncio.fixture(params=["LocalFS", "RemoteFS", "RemoteFS over TLS"], loop_scope="session")
async def files(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Sandbox, relayed: FileSystem
) -> AsyncIterator[FileSystem]:
    """An empty directory at /workspace/case; /workspace/way is a link to it."""
    if request.param == "LocalFS":
        (tmp_path / "case").mkdir()
        (tmp_path / "way").symlink_to("case")
        yield LocalFS(tmp_path)
        return
    await run(shared.shell, "rm -rf /workspace/* && mkdir /workspace/case && ln -s case /workspace/way")
    yield shared.files if request.param == "RemoteFS" else relayed


@pytest_asyncio.fixture(params=["LocalFS", "RemoteFS"], loop_scope="session")
async def small(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Sandbox
) -> AsyncIterator[tuple[FileSystem, str]]:
    """A directory on a file system of 32 MiB; the tests run as root, so this machine can have one as well."""
    if request.param == "RemoteFS":
        await run(shared.shell, "rm -rf /tmp/* && mkdir /tmp/small")
        yield shared.files, "/tmp/small"
        return
    mount = ("mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(tmp_path))
    await asyncio.to_thread(subprocess.run, mount, check=True)
    try:
        yield LocalFS(tmp_path), WORKSPACE
    finally:
        await asyncio.to_thread(subprocess.run, ("umount", str(tmp_path)), check=True)


async def content(files: FileSystem, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([data async for data in files.read(path, offset=offset, length=length)])


async def names(files: FileSystem, path: str = HOME) -> list[str]:
    return [entry.name for entry in (await files.ls(path)).entries]


class Inside:
    """What tool code does to the files, by a shell with the case's directory as its own."""

    def __init__(self, files: FileSystem, directory: Path, sandbox: Sandbox) -> None:
        self._local = directory / "case" if isinstance(files, LocalFS) else None
        self._sandbox = sandbox

    async def run(self, command: str) -> str:
        if self._local is not None:
            process = await asyncio.create_subprocess_shell(command, cwd=self._local, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            assert process.returncode == 0, command
            return output.decode()
        result = await run(self._sandbox.shell, f"cd {HOME} && {{ {command}\n}}", timeout_s=60)
        assert (result.outcome, result.exit_code) == ("exited", 0), result
        return text(result)


@pytest.fixture
def inside(files: FileSystem, tmp_path: Path, shared: Sandbox) -> Inside:
    return Inside(files, tmp_path, shared)
