"""Stops and removes sandboxes in the background, and trims the stopped ones."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from sandbox.background import BackgroundTasks
from sandbox.engines.engine import Leasing
from sandbox.errors import SandboxError
from sandbox.keeper.limits import KeeperLimits
from sandbox.owner import Owner
from sandbox.sandbox import Sandbox
from sandbox.transition import STOPPING, UNUSED

log = logging.getLogger(__name__)


class Removals:
    """The removals of one keeper. A failed one is logged: the engine's next reconciliation repeats it."""

    def __init__(self, engine: Leasing, limits: KeeperLimits) -> None:
        self._engine = engine
        self._limits = limits
        # Owners whose removal is under way: the engine still has the sandbox, but it no longer counts.
        self._under_way: Counter[Owner] = Counter()
        self.background = BackgroundTasks()
        self._closing = False

    def close(self) -> None:
        """From now on the gateway's stop is the reason of removals."""
        self._closing = True

    def begin_removal(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> asyncio.Task[None]:
        """Remove a sandbox in the background, or stop it with `stop` where stopped sandboxes are kept."""
        return self.background.begin(self.remove(owner, sandbox_id, stop=stop))

    async def remove(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> None:
        """Remove a sandbox as begin_removal() does, and wait for it."""
        self._under_way[owner] += 1
        try:
            if not (stop and self._limits.keeps_stopped):
                await self._engine.remove(sandbox_id, STOPPING if self._closing else UNUSED)
            elif await self._engine.stop_idle(sandbox_id):
                await self.trim()
        except SandboxError as error:
            log.warning("sandbox %s could not be removed, a later look will: %s", sandbox_id, error)
        finally:
            self._under_way[owner] -= 1
            if not self._under_way[owner]:
                del self._under_way[owner]

    def is_removing(self, owner: Owner) -> bool:
        """Return whether a removal of the owner's sandbox is under way."""
        return owner in self._under_way

    async def end_calls(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that is past its lifetime, with the calls in it."""
        await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)

    async def end_overdue(self, sandbox: Sandbox) -> None:
        """Do as end_calls(); log a failure."""
        try:
            await self.end_calls(sandbox)
        except SandboxError as error:
            log.warning("sandbox %s is past its lifetime, and a later look will end it: %s", sandbox.id, error)

    async def trim(self) -> None:
        """Remove what is stopped for too long, or past the limit."""
        await self._engine.trim_stopped(timeout_s=self._limits.stopped_timeout_s, limit=self._limits.max_stopped)

    async def trim_logged(self) -> None:
        """Do as trim(); log a failure."""
        try:
            await self.trim()
        except SandboxError as error:
            log.warning("what is stopped for too long was not removed: %s", error)
