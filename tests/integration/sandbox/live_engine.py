"""A DockerEngine of its own instance for a test session, and all that it made gone at the end.

`engine` is a fixture: a conftest.py that imports it has it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.protocols import ExecResult, Shell
from sandbox.sandbox import SandboxLimits, SandboxSpec
from tests.docker_state import containers_of, volumes_of
from tests.made_instances import record_instance

IMAGE = "airlock-sandbox"
RUNTIME_IMAGE = os.environ.get("AIRLOCK_TEST_RUNTIME_IMAGE", "airlock-runtime")
LIMITS = SandboxLimits(memory_bytes=256 * 1024 * 1024, workspace_bytes=64 * 1024 * 1024, pids=64)


def instance_id() -> str:
    return record_instance(f"test-{secrets.token_hex(4)}")


def spec(thread: str = "t1", tenant: str = "tenant-a", image: str = IMAGE, runtime: str = "runc") -> SandboxSpec:
    return SandboxSpec(tenant, thread, image, runtime=runtime, limits=LIMITS)


async def run(shell: Shell, command: str, *, timeout_s: float = 20.0, call_id: str = "c1") -> ExecResult:
    return await shell.execute(
        command, timeout_s=timeout_s, call_id=call_id, limit_chars=80_000, head_chars=2_000, tail_chars=2_000
    )


def text(result: ExecResult) -> str:
    return b"".join(piece.data for piece in result.output).decode()


def kill(engine: DockerEngine) -> None:
    """Have an engine lose its locks and connections, as the kernel takes them from a process that is killed."""
    engine._parts.attached.close()
    if engine._parts.setup._serving is not None:
        engine._parts.setup._serving.close()


async def removed(engine: DockerEngine, instance: str) -> None:
    """Close an engine and assert that nothing of it is left."""
    try:
        for sandbox_id in await engine.owned():
            await engine.remove(sandbox_id)
        await engine.remove_workspaces()
    finally:
        await engine.close()
    assert containers_of(instance) == []
    assert volumes_of(instance) == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerEngine]:
    instance = instance_id()
    channel_root: Path = tmp_path_factory.mktemp("channels")
    made = DockerEngine(instance=instance, channel_root=channel_root, runtime_image=RUNTIME_IMAGE)
    yield made
    await removed(made, instance)
    assert list(channel_root.iterdir()) == []
