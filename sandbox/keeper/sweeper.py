"""Sweeps at intervals: what is idle or overdue is ended, and what dead processes left is adopted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from sandbox.engines.engine import Leasing
from sandbox.errors import SandboxError
from sandbox.keeper.places import Places
from sandbox.keeper.removals import KeeperLimits, Removals

log = logging.getLogger(__name__)

_SWEEPS_PER_TIMEOUT = 4
# A lifetime may be much shorter than an idle timeout.
_SWEEP_LATEST_S = 60.0
# Twice what a policy grants a call that says nothing of it (limits.timeout_s).
GRACE_S = 600.0


class Sweeper:
    """The sweeps of one keeper. begin() starts them; `clock` is in seconds, from any moment on."""

    def __init__(
        self,
        engine: Leasing,
        places: Places,
        removals: Removals,
        limits: KeeperLimits,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._places = places
        self._removals = removals
        self._limits = limits
        self._clock = clock
        # The shortest time that any tenant's sandbox may be idle, and what wakes the sweeper for a shorter one.
        self._shortest_s = limits.idle_timeout_s
        self._shorter = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to sweep, once."""
        if self._task is None:
            self._task = asyncio.create_task(self._sweep_forever())

    def close(self) -> None:
        """Stop sweeping."""
        if self._task is not None:
            self._task.cancel()

    def shorten(self, idle_timeout_s: float | None) -> None:
        """Sweep often enough for a sandbox that may be idle for so long."""
        if idle_timeout_s is not None and idle_timeout_s < self._shortest_s:
            self._shortest_s = idle_timeout_s
            self._shorter.set()

    def sweep(self) -> None:
        """Begin to stop what is idle for too long or past its lifetime, or to remove it where nothing is stopped."""
        now_s = self._clock()
        for owner, place in list(self._places.by_owner.items()):
            timeout_s = self._limits.idle_timeout_s if place.idle_timeout_s is None else place.idle_timeout_s
            overdue_s = None if place.sandbox is None else place.sandbox.overdue_s
            if place.users == 0 and (now_s - place.used_s >= timeout_s or overdue_s is not None):
                self._places.forget(owner, place, stop=True)
            elif place.sandbox is not None and overdue_s is not None and overdue_s >= GRACE_S:
                self._removals.background.begin(self._removals.end_overdue(place.sandbox))

    async def _sweep_forever(self) -> None:
        look_s = self._limits.idle_timeout_s / _SWEEPS_PER_TIMEOUT
        looked_s = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._shortest_s / _SWEEPS_PER_TIMEOUT, _SWEEP_LATEST_S)):
                    await self._shorter.wait()
            self._shorter.clear()
            try:
                self.sweep()
                if self._clock() - looked_s < 0.9 * look_s:  # a timer may be a moment early
                    continue
                looked_s = self._clock()
                # What a dead process left: it may have no successor.
                await self._places.adopt(await self._engine.reconcile(), self._clock())
                await self._removals.trim()
            except SandboxError as error:
                log.warning("what other gateways left was not looked for: %s", error)
            except Exception:  # a full disk, for instance: the next sweep may succeed
                log.exception("sandboxes were not looked after")
