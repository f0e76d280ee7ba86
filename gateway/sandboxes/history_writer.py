"""HistoryWriter: what becomes of sandboxes, written down behind the calls' backs.

The engine tells; a task writes what was told, in order, a moment later. While the database refuses, what was told
waits, so many at most. A process that is killed takes what waits with it, and a sandbox that dies tells nobody: a look
now and then compares what was told last with what there is, and tells what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

import structlog

from gateway.errors import Unavailable
from gateway.storage.transition_store import NewTransition, TransitionStore, Unfinished
from gateway.support.background import in_background
from gateway.support.clock import NowUs, now_us
from sandbox.engines.engine import Listing
from sandbox.errors import SandboxError
from sandbox.owner import digest
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.transition import State, Transition

log = structlog.get_logger(__name__)

_WAITING_LIMIT = 10_000
_BATCH = 200
# What comes in a burst is written at once.
_GATHER_S = 0.05
_RETRY_S = 1.0
# How often the engine is asked whether something ended, and at which of these looks the database is asked in any case.
_LOOK_S = 5.0
_COMPLETE_LOOKS = 6
_LOOK_AGAIN_S = 2.0
# What is found where something else was told, and the words for it. Of what failed the engine says why.
_FOUND: Mapping[State, str] = {
    "removed": "it is not there any more: a gateway that was killed removed it, or something else did",
    "idle_stopped": "found stopped: a gateway that was killed did it",
    "running": "found running: a gateway that was killed started it, or something else did",
}


class HistoryWriter:
    """The history of this process' engine. `tenants` are those whose sandboxes there can be, by name."""

    def __init__(self, store: TransitionStore, tenants: Iterable[str], clock: NowUs = now_us) -> None:
        self._store = store
        self._tenants = {digest(name): name for name in tenants}
        self._clock = clock
        # From where on there may be some that came to no end, and what the last look found of them.
        self._since = 0
        self._found: set[tuple[Unfinished, State]] = set()
        # What ran at the last look.
        self._running: set[str] = set()
        self._waiting: deque[NewTransition] = deque()
        self._told = asyncio.Event()
        self._lost = 0

    def tell(self, one: Transition) -> None:
        """Have a transition written; one of a tenant, or at last of a thread, that nobody knows is not."""
        tenant = self._tenants.get(one.tenant)
        if tenant is None:
            return
        self._keep(NewTransition(tenant, one.name, one.sandbox, one.state, one.reason, self._clock()))

    async def complete(self, engine: Listing) -> int:
        """Tell what nobody told of this engine's sandboxes, for it died or who did it did; return of how many.

        What was told last is compared with what there is. Only what was so at the look before, too, is told: whoever
        did something tells it a moment later. Raises SandboxError and Unavailable.
        """
        told = await self._store.unfinished(await engine.id(), since=self._since)
        owned = await self._owned(engine)
        doubtful = [one for one in told if _is_doubtful(one, engine, owned)]
        there: dict[str, ListedSandbox] = {}
        for tenant in {one.tenant for one in doubtful}:
            there |= {one.id: one for one in await engine.listed(tenant)}
        looked = ((one, *_state_of(there.get(one.sandbox))) for one in doubtful)
        found = {(one, state): why for one, state, why in looked if state != one.state and why}
        sure = {pair: why for pair, why in found.items() if pair in self._found}
        for (one, state), why in sure.items():
            self._keep(NewTransition(one.tenant, one.thread, one.sandbox, state, why, self._clock(), after=one.id))
        self._found = found.keys() - sure.keys()
        # Before the first that came to no end all have come to theirs.
        self._since = min((one.id for one in told), default=self._since)
        return len(sure)

    async def _has_ended(self, engine: Listing) -> bool:
        """Return whether something ran at the last look that does not run now, by asking the engine alone."""
        before = self._running
        await self._owned(engine)
        return not before <= self._running

    async def _owned(self, engine: Listing) -> Mapping[str, bool]:
        owned = await engine.owned()
        self._running = {sandbox for sandbox, runs in owned.items() if runs}
        return owned

    def _keep(self, one: NewTransition) -> None:
        if len(self._waiting) >= _WAITING_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(one)
        self._told.set()

    @contextlib.asynccontextmanager
    async def writing(self, engine_id: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Write what is told until the block ends, and what waits then, if the database takes it."""
        try:
            async with in_background(self._write_forever(engine_id), "sandbox history"):
                yield
        finally:
            # When that task is at its end: what it was about to write waits again.
            with contextlib.suppress(Unavailable):
                await self._write(engine_id)

    @contextlib.asynccontextmanager
    async def completing(self, engine: Listing) -> AsyncIterator[None]:
        """Complete what was told now and then until the block ends."""
        async with in_background(self._complete_forever(engine), "sandbox history, completed"):
            yield

    async def _complete_forever(self, engine: Listing) -> None:
        for look in itertools.count():
            try:
                due = look % _COMPLETE_LOOKS == 0 or self._found or await self._has_ended(engine)
                if due and (told := await self.complete(engine)):
                    log.info("what became of sandboxes was found, for nobody had told it", sandboxes=told)
            except (SandboxError, Unavailable) as error:
                log.warning("what became of sandboxes is not completed for now", error=str(error))
            except Exception:  # the next look may go well
                log.exception("the history of sandboxes was not completed")
            await asyncio.sleep(_LOOK_AGAIN_S if self._found else _LOOK_S)

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


def _state_of(found: ListedSandbox | None) -> tuple[State, str]:
    """Return what a sandbox is, and the words for that it was found so; "" where that is nothing to tell."""
    if found is None:
        return "removed", _FOUND["removed"]
    why = found.reason if found.state == "failed" else _FOUND.get(found.state, "")
    return found.state, why


def _is_doubtful(one: Unfinished, engine: Listing, owned: Mapping[str, bool]) -> bool:
    """Return whether a sandbox may be in another state than was told, by a look that costs nothing."""
    if one.state == "creating" or owned.get(one.sandbox) != (one.state == "running"):
        return True
    spec = SandboxSpec(one.tenant, one.thread, image="")
    return (engine.stopped(spec) == one.sandbox) != (one.state == "idle_stopped")


async def _known(engine_id: Callable[[], Awaitable[str]]) -> str:
    try:
        return await engine_id()
    except SandboxError:
        return ""  # it does not answer: that it was lost is worth to be known all the same
