"""MemoryEndings: how sandboxes of an in-memory engine are stopped and removed."""

from dataclasses import dataclass, replace

from sandbox.engines.engine import surplus
from sandbox.engines.local.memory_sandbox import RunningSandbox, StoppedSandbox
from sandbox.engines.local.memory_sandboxes import MemorySandboxes
from sandbox.errors import SandboxBusy, SandboxError
from sandbox.sandbox import ListedSandbox, owner_by_name
from sandbox.transition import ASKED, CALLS_LOST, EVICTED, OVERDUE, STOPPED_LIMIT, UNUSED


@dataclass(frozen=True)
class MemoryEndings:
    """Satisfies Ending, and the methods of Leasing that stop or remove sandboxes."""

    sandboxes: MemorySandboxes

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running = self.sandboxes.running.get(owner)
        if running is not None and not await self._stop(running, ASKED):
            if self.sandboxes.has_not_ended(running):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            return replace(running.listed(), state="removed")
        stopped = self.sandboxes.at_rest.get(owner)
        return None if stopped is None else stopped.listed()

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running, stopped = self.sandboxes.running.get(owner), self.sandboxes.at_rest.get(owner)
        if running is not None and running.users:
            raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
        self.sandboxes.remove_stopped([owner], ASKED)
        if running is None:
            return None if stopped is None else stopped.listed()
        listed = running.listed()
        await self.sandboxes.end(running, ASKED)
        return listed

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        running = self.sandboxes.running.get(owner_by_name(tenant, thread))
        if running is None or not running.users or (overdue and self.sandboxes.overdue_s(running) is None):
            return False
        await self.sandboxes.end(running, OVERDUE if overdue else CALLS_LOST)
        return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        for running in [one for one in self.sandboxes.running.values() if tenant in (None, one.owner[0])]:
            if running.users or not self.sandboxes.has_not_ended(running):
                continue
            if not stop:
                await self.sandboxes.end(running, EVICTED)
                return True
            if await self._stop(running, EVICTED) or not self.sandboxes.has_not_ended(running):
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        running = self.sandboxes.find(sandbox_id)
        return running is not None and await self._stop(running, UNUSED)

    async def _stop(self, running: RunningSandbox, reason: str) -> bool:
        """Stop a sandbox that is not in use, or remove a dead one; return whether it is stopped."""
        sandboxes = self.sandboxes
        if running.users:
            return False
        try:
            processes = await running.count_processes()
        except SandboxError:
            processes = 0
        if not sandboxes.has_not_ended(running) or running.users:
            return False  # it was used meanwhile
        if not running.alive:
            await sandboxes.end(running, f"{reason}, and it could not be stopped")
            return False
        known, ended = (running.id, running.spec, running.created_s), running.ended_processes + processes
        sandboxes.at_rest[running.owner] = StoppedSandbox(*known, sandboxes.clock(), ended)
        also = f"; its background processes ({processes}) ended" if processes else ""
        sandboxes.report(running, "idle_stopped", f"{reason}{also}")
        await sandboxes.end(running)
        return True

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        found = [(stopped.since_s, owner) for owner, stopped in self.sandboxes.at_rest.items()]
        removed = surplus(found, until_s=self.sandboxes.clock() - timeout_s, limit=limit)
        self.sandboxes.remove_stopped(removed, STOPPED_LIMIT)
        return len(removed)

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        stopped = self.sandboxes.at_rest.items()
        self.sandboxes.remove_stopped([owner for owner, one in stopped if one.id == sandbox_id], reason)
        running = self.sandboxes.find(sandbox_id)
        if running is not None:
            await self.sandboxes.end(running, reason if running.alive else "lost")
