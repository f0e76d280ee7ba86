"""Images that the engine has to fetch: by name, by digest, and from a registry that does not answer."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import AsyncIterator

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.image_pulls import ImagePulls, PullingCreation
from sandbox.engines.engine import Creator
from sandbox.errors import ImageMissing, SandboxUnavailable
from tests.integration.sandbox.live_engine import instance_id, spec
from tests.integration.sandbox.local_registry import registry

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextlib.asynccontextmanager
async def pulling(engine: DockerEngine, *, wait_s: float = 60.0) -> AsyncIterator[Creator]:
    pulls = ImagePulls(DockerRequests(), wait_s=wait_s, timeout_s=60.0)
    try:
        yield PullingCreation(engine, pulls)
    finally:
        pulls.close()


async def made(engine: DockerEngine, on: Creator, image: str) -> None:
    """Make a sandbox of an image, and remove it with its files."""
    asked = spec(instance_id(), image=image)
    sandbox = await on.create(asked)
    try:
        assert (await sandbox.files.stat("/marker")).size_bytes == 8
    finally:
        await engine.remove(sandbox.id)
        await engine.remove_workspace(asked.tenant, asked.thread)


async def test_an_image_is_pulled_by_name_and_by_digest_when_a_sandbox_needs_it(engine: DockerEngine) -> None:
    with registry(secrets.token_hex(4).encode()) as found:
        names = (f"{found.name}:1", f"{found.name}@{found.digest}")
        try:
            for name in names:
                async with pulling(engine) as on:
                    await made(engine, on, name)
                    asked = len(found.asked)
                    await made(engine, on, name)
                    assert len(found.asked) == asked
                subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)
            wrong = f"{found.name}@sha256:{'0' * 64}"
            async with pulling(engine) as on:
                with pytest.raises(ImageMissing, match=f"{wrong}.*pulling it failed"):
                    await made(engine, on, wrong)
        finally:
            for name in names:
                subprocess.run(["docker", "image", "rm", "-f", name], check=False, capture_output=True)


async def test_a_registry_that_is_silent_costs_a_call_its_wait_and_no_more(engine: DockerEngine) -> None:
    with registry(secrets.token_hex(4).encode()) as found:
        found.answering.clear()
        async with pulling(engine, wait_s=0.2) as on:
            with pytest.raises(SandboxUnavailable, match="is being pulled"):
                await made(engine, on, f"{found.name}:1")


async def test_a_registry_that_is_not_there_is_named_with_what_was_tried(engine: DockerEngine) -> None:
    async with pulling(engine) as on:
        with pytest.raises(ImageMissing, match=r"127\.0\.0\.1:1/x:1.*connection refused.*docker load"):
            await made(engine, on, "127.0.0.1:1/x:1")
