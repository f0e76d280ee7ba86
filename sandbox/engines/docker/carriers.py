"""Carriers: containers that mount a workspace and are never started, through which its files are read and written.

Nothing of the tenant's runs on the way, whether its sandbox lives or not: the engine packs and unpacks within the
carrier's root. A lock file says that a carrier is in use: one whose lock no process has was left by a dead process, and
is removed by the next that finds it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.lock_directory import LockFiles
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.request_threads import to_the_end
from sandbox.errors import SandboxBusy, SandboxError
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import SandboxSpec
from sandbox.thread_lock import ThreadLock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Carriers:
    """The carriers of one gateway instance, one for each thread at most."""

    parts: Parts
    setup: EngineSetup
    instance: str
    channel_root: Path
    runtime_image: str

    @property
    def locks(self) -> LockFiles:
        """The lock files, by the names of the carriers."""
        return LockFiles(self.channel_root / "carriers", "")

    @asynccontextmanager
    async def alone(self, owner: Owner) -> AsyncIterator[None]:
        """Have a thread's workspace to oneself, of all processes; SandboxBusy while another call has it."""
        name = config.carrier_name(self.instance, owner)
        lock = self._locked(name)
        try:
            if await self.parts.requests.ask(docker_requests.named_containers, [name]):
                async with self.parts.requests.threads.streams.turn(owner[0]):
                    await self._remove(name)
            yield
        finally:
            lock.retire()
            self.locks.close()

    @asynccontextmanager
    async def carrier(self, spec: SandboxSpec, pooled: str) -> AsyncIterator[str]:
        """Have a container that mounts a workspace, which is made if there is none; the caller is alone() with it.

        `pooled` is the pooled sandbox whose volume has the files, "" for the thread's own volume.
        """
        quota = (await self.setup.prepared()).workspace_quota
        name = config.carrier_name(self.instance, owner_of(spec))
        body = config.carrier_config(self.runtime_image, spec, self.instance, quota=quota, pooled=pooled)
        try:
            await self.parts.requests.ask(docker_requests.create_container, body, name)
            yield name
        finally:
            try:
                await self._remove(name)
            except SandboxError as error:
                # A later call or start removes it. What counts is how the stream ended.
                log.warning("a container that carried a workspace is left: %s", error)

    async def remove_left(self) -> None:
        """Remove what dead processes of this instance left of saving or replacing a workspace."""
        for container in await self.parts.containers.of_kind("carrier"):
            labels = container["Labels"]
            with suppress(SandboxBusy):
                async with self.alone((labels[config.TENANT_LABEL], labels[config.THREAD_LABEL])):
                    pass
        for _, name in self.locks.found():  # their process died before there was a container, or after it
            lock = self.locks.try_enter(name)
            if lock is not None:
                lock.retire()
        self.locks.close()

    async def _remove(self, name: str) -> None:
        """Remove a carrier in the caller's turn of its tenant's streams: an engine may be stuck with it."""
        remove = docker_requests.remove_container
        await to_the_end(self.parts.requests.threads.begin_stream(lambda: self.parts.requests.ask_here(remove, name)))

    def _locked(self, name: str) -> ThreadLock:
        while True:
            lock = ThreadLock.open(self.locks.path(name))
            if not lock.try_gate():
                lock.close()
                raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
            if not lock.gone:
                return lock
            lock.close()
