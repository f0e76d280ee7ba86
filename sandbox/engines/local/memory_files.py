"""MemoryFiles: the files of threads of an in-memory engine as a whole, apart from the sandboxes that use them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sandbox.engines.local.local_workspaces import LocalWorkspaces
from sandbox.engines.local.memory_sandboxes import MemorySandboxes
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import SandboxBusy, SandboxUnavailable
from sandbox.sandbox import SandboxSpec, digest, owner_by_name, owner_of
from sandbox.transition import DELETED, STOPPING

_RESTORED = "its files were replaced"
_Saved = TypeVar("_Saved")


@dataclass(frozen=True)
class MemoryFiles:
    """Satisfies Workspaces, and removes files."""

    sandboxes: MemorySandboxes
    workspaces: LocalWorkspaces

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Saved]) -> _Saved | None:
        owner = owner_of(spec)
        with self.workspaces.alone(owner):
            return await self.workspaces.save(owner, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        del size_bytes  # there is no reserve of the machine's disk
        await self.workspaces.prepare()
        owner = owner_of(spec)
        with self.workspaces.alone(owner):
            unblocked = False
            while not unblocked:
                running = self.sandboxes.running.get(owner)
                if running is not None and running.users:
                    raise SandboxBusy("the thread has calls in progress: wait for them or cancel them")
                if running is not None:
                    self.sandboxes.begin_to_end(running, _RESTORED)
                unblocked = await self.sandboxes.unblocked(owner)
            self.sandboxes.remove_stopped([owner], _RESTORED)
            task = asyncio.get_running_loop().create_task(self.workspaces.replace(owner, give))
            self.sandboxes.block(owner, task)
            await task

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        owner = owner_by_name(tenant, thread)
        await self.sandboxes.unblocked(owner)
        if owner in self.sandboxes.running or owner in self.sandboxes.at_rest:
            raise SandboxUnavailable("the files of this thread are in use by its sandbox; remove that first")
        return await self.workspaces.delete(owner)

    async def remove_all_of(self, tenant: str) -> int:
        await self.sandboxes.end_all(DELETED, digest(tenant))
        return sum([await self.workspaces.delete(owner) for owner in self.workspaces.owners(tenant)])

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        theirs = digest(tenant)
        owners = {*self.sandboxes.running, *self.sandboxes.ending, *self.sandboxes.at_rest}
        containers = sum(owner[0] == theirs for owner in owners)
        return {"volumes": len(self.workspaces.owners(tenant)), "containers": containers}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread; raises after the others are gone if some are in use by sandboxes."""
        self.sandboxes.remove_stopped([*self.sandboxes.at_rest], STOPPING)
        busy = {*self.sandboxes.running, *self.sandboxes.ending}
        for owner in self.workspaces.owners():
            if owner not in busy:
                await self.workspaces.delete(owner)
        if busy:
            raise SandboxUnavailable(f"the files of {len(busy)} threads are in use by their sandboxes")
