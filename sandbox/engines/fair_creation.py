"""Bounds how many sandboxes are created at once, and shares the places between tenants.

An engine that is asked for fifty sandboxes at once makes all of them slowly. Here as many are created at once as the
machine has processors for, and the others wait for a place (sandbox/fair_semaphore.py). The number of creations that
one tenant may have waiting is bounded.
"""

import os

from sandbox.engines.engine import Creator
from sandbox.fair_semaphore import FairSemaphore
from sandbox.sandbox import Sandbox, SandboxSpec

_WAITING_LIMIT = 64


class FairCreation:
    """Satisfies Creator; create() raises TooManyWaiting where `waiting_limit` creations of its tenant wait."""

    def __init__(self, inner: Creator, *, at_once: int | None = None, waiting_limit: int = _WAITING_LIMIT) -> None:
        self.inner = inner
        # A creation is a few steps of the engine's, a part of which waits for its disk.
        places = 2 * len(os.sched_getaffinity(0)) if at_once is None else at_once
        self._turns = FairSemaphore(places, waiting_limit)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        async with self._turns.turn(spec.tenant):
            return await self.inner.create(spec)
