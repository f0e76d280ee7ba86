"""SandboxHistory: what becomes of sandboxes, written down behind the calls' backs.

The engine tells; a task writes what was told, in order, a moment later. While the database refuses, what was told
waits, so many at most. A process that is killed takes what waits with it: the next one tells what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import structlog

from gateway.clock import NowUs, now_us
from gateway.errors import Unavailable
from gateway.storage.transition_store import NewTransition, TransitionStore
from sandbox.container_config import digest
from sandbox.errors import SandboxError
from sandbox.transition import Transition

log = structlog.get_logger(__name__)

_WAITING_LIMIT = 10_000
_BATCH = 200
# What comes in a burst is written at once.
_GATHER_S = 0.05
_RETRY_S = 1.0


class SandboxHistory:
    """The history of this process' engine. `tenants` are those whose sandboxes there can be, by name."""

    def __init__(self, store: TransitionStore, tenants: Iterable[str], clock: NowUs = now_us) -> None:
        self._store = store
        self._tenants = {digest(name): name for name in tenants}
        self._clock = clock
        self._waiting: deque[NewTransition] = deque()
        self._told = asyncio.Event()
        self._lost = 0

    def tell(self, one: Transition) -> None:
        """Have a transition written; one of a thread or a tenant that nobody knows is not."""
        tenant = self._tenants.get(one.tenant)
        if tenant is None or not one.name:
            return
        if len(self._waiting) >= _WAITING_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(NewTransition(tenant, one.name, one.sandbox, one.state, one.reason, self._clock()))
        self._told.set()

    @contextlib.asynccontextmanager
    async def writing(self, engine_id: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Write what is told until the block ends, and what waits then, if the database takes it."""
        task = asyncio.create_task(self._write_forever(engine_id), name="sandbox history")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with contextlib.suppress(Unavailable):
                await self._write(engine_id)

    async def _write_forever(self, engine_id: Callable[[], Awaitable[str]]) -> None:
        while True:
            await self._told.wait()
            await asyncio.sleep(_GATHER_S)
            try:
                await self._write(engine_id)
            except Unavailable as error:
                log.warning("what becomes of sandboxes is not written for now", error=str(error))
                await asyncio.sleep(_RETRY_S)
            except Exception:  # a later batch may go well, and must come
                log.exception("the history of sandboxes was not written")
                self._waiting.clear()

    async def _write(self, engine_id: Callable[[], Awaitable[str]]) -> None:
        self._told.clear()
        while self._waiting:
            if self._lost:
                log.warning("the history of sandboxes has a gap", lost=self._lost)
                self._lost = 0
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._store.add(await _known(engine_id), batch)
            except BaseException:
                self._waiting.extendleft(reversed(batch))
                self._told.set()
                raise


async def _known(engine_id: Callable[[], Awaitable[str]]) -> str:
    try:
        return await engine_id()
    except SandboxError:
        return ""  # it does not answer: that it was lost is worth to be known all the same
