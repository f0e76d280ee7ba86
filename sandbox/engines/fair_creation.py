"""FairCreation: an engine around an engine that makes few sandboxes at once, and lets tenants take turns.

An engine that is asked for fifty sandboxes at once makes all of them slowly. Here so many are made at once as the
machine has processors for, and the others wait for their turn (sandbox/fair_semaphore.py). How many one tenant may
have waiting is bounded.
"""

from __future__ import annotations

import os

from sandbox.engines.engine import Engine
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.fair_semaphore import FairSemaphore
from sandbox.sandbox import Sandbox, SandboxSpec

# A creation is a few steps of the engine's, a part of which waits for its disk.
_PER_PROCESSOR = 2
_WAITING_LIMIT = 64


def fair_creation(engine: Engine, *, at_once: int | None = None, waiting_limit: int = _WAITING_LIMIT) -> Engine:
    """Return an engine whose create() waits for its turn; TooManyWaiting where `waiting_limit` of its tenant do."""
    places = _PER_PROCESSOR * len(os.sched_getaffinity(0)) if at_once is None else at_once
    return _FairCreation(engine, FairSemaphore(places, waiting_limit))


class _FairCreation(EngineDecorator):
    def __init__(self, engine: Engine, turns: FairSemaphore) -> None:
        super().__init__(engine)
        self._turns = turns

    async def create(self, spec: SandboxSpec) -> Sandbox:
        async with self._turns.turn(spec.tenant):
            return await self.engine.create(spec)
