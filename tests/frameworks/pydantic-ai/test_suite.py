"""pydantic-ai's own suite for workspace backends, whole."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from airlock import Client, errors
from gateway.integrations.pydantic_ai import AirlockWorkspaceBackend

# Not anyio, as the suite marks itself: one event loop for all, for grpc still wakes closed ones of earlier tests.
WorkspaceBackendSuite.pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def airlock(address: str, api_key: str) -> AsyncIterator[Client]:
    async with Client(address, api_key) as client:
        yield client


async def _destroy(airlock: Client, thread: str) -> None:
    """Take a thread's container away, as a lost machine would, and delete the thread."""
    try:
        sandbox = await airlock.get_sandbox(thread)
    except errors.NotFound:
        pass
    else:
        label = f"label=airlock.sandbox={sandbox.id}"
        listed = subprocess.run(["docker", "ps", "-q", "--filter", label], capture_output=True, text=True, check=True)
        subprocess.run(["docker", "rm", "-f", *listed.stdout.split()], capture_output=True, check=True)
    while True:
        try:
            await airlock.delete_thread(thread)
        except errors.ThreadBusy:
            await asyncio.sleep(0.05)
        else:
            return


class TestWorkspaceBackend(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, airlock: Client) -> WorkspaceBackend:
        return AirlockWorkspaceBackend(airlock, thread="pydantic-ai suite")

    @pytest.fixture
    def fresh_backend(self, airlock: Client) -> Callable[[], WorkspaceBackend]:
        return lambda: AirlockWorkspaceBackend(airlock)

    @pytest.fixture
    def attach_backend(self, airlock: Client) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: AirlockWorkspaceBackend(airlock, ref=ref)

    @pytest.fixture
    def destroy_environment(self, airlock: Client) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await _destroy(airlock, backend.ref.id)

        return destroy
