"""HistoryWriter: what becomes of sandboxes, written down behind the calls' backs.

The engine tells; a task writes what was told, in order, a moment later. While the database refuses, what was told
waits, so many at most. A process that is killed takes what waits with it: the next one tells what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any

import structlog

from gateway.clock import NowUs, now_us
from gateway.errors import Unavailable
from gateway.storage.transition_store import NewTransition, TransitionStore, Unfinished
from sandbox.engine import Engine, SandboxSpec
from sandbox.errors import SandboxError
from sandbox.owner import digest
from sandbox.transition import Transition

log = structlog.get_logger(__name__)

_WAITING_LIMIT = 10_000
_BATCH = 200
# What comes in a burst is written at once.
_GATHER_S = 0.05
_RETRY_S = 1.0
_COMPLETE_S = 30.0
_LOOK_AGAIN_S = 2.0
# What is found where something else was told, and the words for it.
_FOUND = {
    "removed": "it is not there any more: a gateway that was killed removed it, or something else did",
    "idle_stopped": "found stopped: a gateway that was killed did it",
    "running": "found running: a gateway that was killed started it",
}


class HistoryWriter:
    """The history of this process' engine. `tenants` are those whose sandboxes there can be, by name."""

    def __init__(self, store: TransitionStore, tenants: Iterable[str], clock: NowUs = now_us) -> None:
        self._store = store
        self._tenants = {digest(name): name for name in tenants}
        self._clock = clock
        # From where on there may be some that came to no end, and what the last look found of them.
        self._since = 0
        self._found: set[tuple[Unfinished, str]] = set()
        self._waiting: deque[NewTransition] = deque()
        self._told = asyncio.Event()
        self._lost = 0

    def tell(self, one: Transition) -> None:
        """Have a transition written; one of a tenant, or at last of a thread, that nobody knows is not."""
        tenant = self._tenants.get(one.tenant)
        if tenant is None:
            return
        self._keep(NewTransition(tenant, one.name, one.sandbox, one.state, one.reason, self._clock()))

    async def complete(self, engine: Engine) -> int:
        """Tell what nobody told of this engine's sandboxes, for who did it was killed; return of how many.

        What was told last is compared with what there is. Only what was so at the look before, too, is told: whoever
        did something tells it a moment later. Raises SandboxError and Unavailable.
        """
        told = await self._store.unfinished(await engine.id(), since=self._since)
        owned = set(await engine.owned())
        doubtful = [one for one in told if _is_doubtful(one, engine, owned)]
        there: dict[str, str] = {}
        for tenant in {one.tenant for one in doubtful}:
            there |= {one.id: one.state for one in await engine.listed(tenant)}
        found = {(one, there.get(one.sandbox, "removed")) for one in doubtful}
        found = {(one, state) for one, state in found if state != one.state and state in _FOUND}
        sure = sorted(found & self._found, key=lambda pair: pair[0].id)
        for one, state in sure:
            self._keep(NewTransition(one.tenant, one.thread, one.sandbox, state, _FOUND[state], self._clock()))
        self._found = found - self._found
        # Before the first that came to no end all have come to theirs.
        self._since = min((one.id for one in told), default=self._since)
        return len(sure)

    def _keep(self, one: NewTransition) -> None:
        if len(self._waiting) >= _WAITING_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(one)
        self._told.set()

    @contextlib.asynccontextmanager
    async def writing(self, engine_id: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Write what is told until the block ends, and what waits then, if the database takes it."""
        async with _under_way(self._write_forever(engine_id), "sandbox history"):
            yield
            with contextlib.suppress(Unavailable):
                await self._write(engine_id)

    @contextlib.asynccontextmanager
    async def completing(self, engine: Engine) -> AsyncIterator[None]:
        """Complete what was told now and then until the block ends."""
        async with _under_way(self._complete_forever(engine), "sandbox history, completed"):
            yield

    async def _complete_forever(self, engine: Engine) -> None:
        while True:
            try:
                if told := await self.complete(engine):
                    log.info("what became of sandboxes was found, for nobody had told it", sandboxes=told)
            except (SandboxError, Unavailable) as error:
                log.warning("what became of sandboxes is not completed for now", error=str(error))
            except Exception:  # the next look may go well
                log.exception("the history of sandboxes was not completed")
            # What was left before the start is told soon after it.
            await asyncio.sleep(_LOOK_AGAIN_S if self._found else _COMPLETE_S)

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


@contextlib.asynccontextmanager
async def _under_way(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _is_doubtful(one: Unfinished, engine: Engine, owned: Collection[str]) -> bool:
    """Return whether a sandbox may be in another state than was told, by a look that costs nothing."""
    if one.sandbox not in owned or one.state == "creating":
        return True
    spec = SandboxSpec(one.tenant, one.thread, image="")
    return (engine.stopped(spec) == one.sandbox) != (one.state == "idle_stopped")


async def _known(engine_id: Callable[[], Awaitable[str]]) -> str:
    try:
        return await engine_id()
    except SandboxError:
        return ""  # it does not answer: that it was lost is worth to be known all the same
