"""FairCreation: an engine around an engine that makes few sandboxes at once, and lets tenants take turns.

An engine that is asked for fifty sandboxes at once makes all of them slowly. Here so many are made at once as the
machine has processors for, and the others wait. A place that comes free goes to the tenant with the fewest creations
under way, and of those to the one that waits longest since it last had one. So a tenant that has none under way waits
for the end of one creation, and of one more for each other tenant that waits: however many sandboxes these have asked
for. How many one tenant may have waiting is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from sandbox.engine import Engine, Sandbox, SandboxSpec
from sandbox.errors import TooManyCreations

# A creation is a few steps of the engine's, a part of which waits for its disk.
_PER_PROCESSOR = 2
_WAITING_LIMIT = 64
# Of a creation that cannot even wait: some of those before it are over then.
_RETRY_S = 2.0


def fair_creation(engine: Engine, *, at_once: int | None = None, waiting_limit: int = _WAITING_LIMIT) -> Engine:
    """Return an engine whose create() waits for its turn; TooManyCreations where `waiting_limit` of its tenant do."""
    places = _PER_PROCESSOR * len(os.sched_getaffinity(0)) if at_once is None else at_once
    return cast(Engine, _FairCreation(engine, Turns(places, waiting_limit)))


class _FairCreation:
    def __init__(self, engine: Engine, turns: Turns) -> None:
        self._engine = engine
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the engine."""
        return getattr(self._engine, name)

    async def create(self, spec: SandboxSpec, **options: Any) -> Sandbox:
        async with self._turns.turn(spec.tenant):
            return await self._engine.create(spec, **options)


class Turns:
    """`places` that tenants have in turns; of one tenant `waiting_limit` wait at most."""

    def __init__(self, places: int, waiting_limit: int) -> None:
        self._free = places
        self._waiting_limit = waiting_limit
        self._under_way: Counter[str] = Counter()
        # Who has waited longest since it last had a place comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Have a place for as long as the block takes."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _take(self, tenant: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            self._under_way[tenant] += 1
            return
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._waiting_limit:
            raise TooManyCreations(
                f"{len(queue)} sandboxes of this tenant wait to be made, which is the most; try again in "
                f"{_RETRY_S:g} s",
                retry_after_s=_RETRY_S,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(tenant)  # it had just been given one
            else:
                self._leave(tenant, turn)
            raise

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is not None:
            with contextlib.suppress(ValueError):
                queue.remove(turn)
            if not queue:
                del self._waiting[tenant]

    def _give_back(self, tenant: str) -> None:
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        self._free += 1
        while self._free and self._waiting:
            # The first of those with the fewest: min() keeps to the order.
            following = min(self._waiting, key=lambda one: self._under_way[one])
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            if queue:
                self._waiting[following] = queue
            if not turn.done():
                self._free -= 1
                self._under_way[following] += 1
                turn.set_result(None)
