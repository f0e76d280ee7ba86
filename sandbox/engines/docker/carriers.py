"""Carriers: containers that mount a workspace and are never started, through which its files are read and written.

Nothing of the tenant's runs on the way, whether its sandbox lives or not: the engine packs and unpacks within the
carrier's root. A lock file says that a carrier is in use: one whose lock no process has was left by a dead process, and
is removed by the next that finds it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.containers import Containers
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.request_threads import to_the_end
from sandbox.errors import SandboxBusy, SandboxError
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import SandboxSpec
from sandbox.thread_lock import ThreadLock

log = logging.getLogger(__name__)


class Carriers:
    """The carriers of one gateway instance, one for each thread at most."""

    def __init__(
        self,
        requests: DockerRequests,
        containers: Containers,
        setup: EngineSetup,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str,
    ) -> None:
        self._requests = requests
        self._containers = containers
        self._setup = setup
        self._instance = instance
        self._directory = channel_root / "carriers"
        self._runtime_image = runtime_image

    @asynccontextmanager
    async def alone(self, owner: Owner) -> AsyncIterator[None]:
        """Have a thread's workspace to oneself, of all processes; SandboxBusy while another call has it."""
        lock = self._lock(owner)
        name = config.carrier_name(self._instance, owner)
        try:
            if await self._requests.ask(docker_requests.named_containers, [name]):
                async with self._requests.threads.streams.turn(owner[0]):
                    await self._remove(name)
            yield
        finally:
            lock.retire()
            self._remove_directory()

    @asynccontextmanager
    async def carrier(self, spec: SandboxSpec, pooled: str) -> AsyncIterator[str]:
        """Have a container that mounts a workspace, which is made if there is none; the caller is alone() with it.

        `pooled` is the pooled sandbox whose volume has the files, "" for the thread's own volume.
        """
        quota = (await self._setup.prepared()).workspace_quota
        name = config.carrier_name(self._instance, owner_of(spec))
        body = config.carrier_config(self._runtime_image, spec, self._instance, quota=quota, pooled=pooled)
        try:
            await self._requests.ask(docker_requests.create_container, body, name)
            yield name
        finally:
            try:
                await self._remove(name)
            except SandboxError as error:
                # A later call or start removes it. What counts is how the stream ended.
                log.warning("a container that carried a workspace is left: %s", error)

    async def remove_left(self) -> None:
        """Remove what dead processes of this instance left of saving or replacing a workspace."""
        for container in await self._containers.of_kind("carrier"):
            labels = container["Labels"]
            with suppress(SandboxBusy):
                async with self.alone((labels[config.TENANT_LABEL], labels[config.THREAD_LABEL])):
                    pass
        for path in self._directory.glob("*.lock"):  # their process died before there was a container, or after it
            lock = ThreadLock.open(path)
            if lock.try_gate():
                lock.retire()
            else:
                lock.close()
        self._remove_directory()

    async def _remove(self, name: str) -> None:
        """Remove a carrier in the caller's turn of its tenant's streams: an engine may be stuck with it."""
        remove = docker_requests.remove_container
        await to_the_end(self._requests.threads.begin_stream(lambda: self._requests.ask_here(remove, name)))

    def _lock(self, owner: Owner) -> ThreadLock:
        while True:
            lock = ThreadLock.open(self._directory / f"{config.carrier_name(self._instance, owner)}.lock")
            if not lock.try_gate():
                lock.close()
                raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
            if not lock.gone:
                return lock
            lock.close()

    def _remove_directory(self) -> None:
        with suppress(OSError):
            self._directory.rmdir()
