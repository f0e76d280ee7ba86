"""EngineSetup: what all sandboxes of an engine share, made once, and which processes of the instance serve."""

from __future__ import annotations

import asyncio

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.docker.runtime_volume import EngineContext, prepare, release_runtime
from sandbox.thread_lock import ThreadLock


class EngineSetup:
    """Fills the runtime volume, and has the serving lock from then on: each process that serves shares it."""

    def __init__(self, requests: DockerRequests, locks: LockDirectory, instance: str, runtime_image: str) -> None:
        self._requests = requests
        self._locks = locks
        self._instance = instance
        self._runtime_image = runtime_image
        self._preparing = asyncio.Lock()
        self._context: EngineContext | None = None
        self._engine_id = ""
        self._serving: ThreadLock | None = None
        # Whether no other process of the instance served when this one stopped serving.
        self._was_last = False

    async def engine_id(self) -> str:
        """Return the id that the engine gave itself."""
        if not self._engine_id:
            self._engine_id = await self._requests.ask(docker_requests.engine_id)
        return self._engine_id

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else the daemon watches it, and may be late."""
        return self._context is not None and self._context.workspace_quota

    async def prepared(self) -> EngineContext:
        """Return the context of all sandboxes, the runtime volume filled; asks the engine once."""
        if self._context is None:
            async with self._preparing:
                if self._context is None:
                    self.close()
                    self._serving = serving = await self._locks.enter_serving()
                    try:
                        self._context = await self._requests.ask(prepare, self._runtime_image, self._instance)
                    finally:
                        serving.hold()
                        serving.leave()
        return self._context

    def forget(self) -> None:
        """Have the next prepared() ask the engine again."""
        self._context = None

    async def refill(self) -> None:
        """Have the runtime volume filled again: only an empty one is, so it is removed if no sandbox uses it."""
        await self.release()
        self.forget()

    async def stop_serving(self) -> bool:
        """Give up the serving lock; return whether no other process of the instance serves."""
        self.close()
        serving = await self._locks.enter_serving()
        try:
            if not serving.hold_alone():
                return False
            serving.retire()
            self._was_last = True
            return True
        finally:
            serving.close()

    async def is_last(self) -> bool:
        """Return whether this process served, and was the last of the instance; it serves no more."""
        return self._was_last or (self._serving is not None and await self.stop_serving())

    async def release(self) -> None:
        """Remove the runtime volume if no gateway uses it."""
        if self._context is not None:
            await self._requests.ask(release_runtime, self._context.runtime.volume)

    def close(self) -> None:
        """Drop the serving lock."""
        if self._serving is not None:
            self._serving.close()
            self._serving = None
