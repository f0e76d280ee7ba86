"""The limits of a keeper, and how it stops and removes sandboxes: in the background, for no call waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from sandbox.background import BackgroundTasks
from sandbox.engines.engine import Leasing
from sandbox.errors import SandboxError
from sandbox.owner import Owner
from sandbox.sandbox import Sandbox
from sandbox.transition import STOPPING, UNUSED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeeperLimits:
    """An idle sandbox is stopped after `idle_timeout_s`, and removed when stopped for `stopped_timeout_s`.

    A `stopped_timeout_s` of 0 removes idle sandboxes at once. `max_live` and `max_live_per_tenant` limit the living
    sandboxes, `max_stopped` the stopped ones, of all gateways of the engine together.
    """

    idle_timeout_s: float
    max_live: int
    max_live_per_tenant: int
    stopped_timeout_s: float
    max_stopped: int

    @property
    def keeps_stopped(self) -> bool:
        """Whether idle sandboxes are stopped rather than removed."""
        return self.stopped_timeout_s > 0


class Removals:
    """The removals of one keeper. A failed one is logged: the engine's next reconciliation repeats it.

    `under_way` has the owners whose sandbox the engine still has, but which no longer counts.
    """

    def __init__(self, engine: Leasing, limits: KeeperLimits) -> None:
        self._engine = engine
        self._limits = limits
        self.under_way: Counter[Owner] = Counter()
        self.background = BackgroundTasks()
        self.closing = False

    def begin_removal(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> asyncio.Task[None]:
        """Remove a sandbox in the background, or stop it with `stop` where stopped sandboxes are kept."""
        return self.background.begin(self.remove(owner, sandbox_id, stop=stop))

    async def remove(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> None:
        """Remove a sandbox as begin_removal() does, and wait for it."""
        self.under_way[owner] += 1
        try:
            if not (stop and self._limits.keeps_stopped):
                await self._engine.remove(sandbox_id, STOPPING if self.closing else UNUSED)
            elif await self._engine.stop_idle(sandbox_id):
                await self.trim()
        except SandboxError as error:
            log.warning("sandbox %s could not be removed, a later look will: %s", sandbox_id, error)
        finally:
            self.under_way[owner] -= 1
            if not self.under_way[owner]:
                del self.under_way[owner]

    async def end_overdue(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that is past its lifetime, with the calls in it; log a failure."""
        try:
            await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)
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
            log.warning("sandboxes that were stopped for too long were not removed: %s", error)
