"""The state transitions of tenants' sandboxes: written without delaying calls, and read from the database alone."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import structlog

from gateway.errors import Unavailable
from gateway.storage.thread_store import ThreadStore
from gateway.storage.transition_store import NewTransition, StoredTransition, TransitionStore, Unfinished
from gateway.support.background import in_background, pause
from gateway.support.clock import NowUs, now_us
from sandbox.engines.engine import Listing
from sandbox.errors import SandboxError
from sandbox.sandbox import ListedSandbox, SandboxSpec, digest
from sandbox.transition import State, Transition

_PAGE = 200
# The longest delay until another gateway's transitions are seen.
_POLL_S = 0.5
log = structlog.get_logger(__name__)
_WAITING_LIMIT = 10_000
_BATCH = 200
# A burst is written at once.
_GATHER_S = 0.05
_RETRY_S = 1.0
# How often the engine is asked whether something ended, and every how many of these rounds the database is asked too.
_LOOK_S = 5.0
_COMPLETE_LOOKS = 6
_LOOK_AGAIN_S = 2.0
# The reasons for states that differ from the last reported ones. The engine has its own reason for a failure.
_FOUND: Mapping[State, str] = {
    "removed": "no longer exists: removed by a gateway that was killed, or from outside",
    "idle_stopped": "found stopped: by a gateway that was killed",
    "running": "found running: started by a gateway that was killed, or from outside",
}


@dataclass(frozen=True)
class HistoryReader:
    """The history of every tenant's sandboxes, on all gateways."""

    store: TransitionStore
    threads: ThreadStore
    poll_s: float = _POLL_S
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        """Return a tenant's transitions, or those of one thread, newest first; NotFound for an unknown thread."""
        await self._refuse_unknown(tenant, thread)
        return await self.store.page(tenant, thread=thread, before=before, limit=limit)

    async def watch(
        self, tenant: str, *, thread: str | None, after: int | None
    ) -> AsyncIterator[StoredTransition | None]:
        """Yield None, then the transitions after an id, by default from now on, oldest first; ends with the gateway.

        NotFound for an unknown thread.
        """
        await self._refuse_unknown(tenant, thread)
        if after is None:
            newest = await self.store.page(tenant, thread=None, before=None, limit=1)
            after = newest[0].id if newest else 0
        yield None
        while not self.closing.is_set():
            found = await self.store.after(tenant, thread=thread, after=after, limit=_PAGE)
            for one in found:
                yield one
                after = one.id
            if not found:
                await pause(self.closing, self.poll_s)

    def close(self) -> None:
        self.closing.set()

    async def _refuse_unknown(self, tenant: str, thread: str | None) -> None:
        if thread is not None:
            await self.threads.known(tenant, thread)


class HistoryWriter:
    """The history of this process's engine. `tenants` are the names of those whose sandboxes there can be.

    While the database refuses writes, a limited number waits. A killed process loses what waits, and a sandbox that
    dies reports nothing: so the last reported states are periodically compared with the engine.
    """

    def __init__(self, store: TransitionStore, tenants: Iterable[str], clock: NowUs = now_us) -> None:
        self._store = store
        self._tenants = {digest(name): name for name in tenants}
        self._clock = clock
        # The id from which on there may be unfinished ones, and what the last round found of them.
        self._since = 0
        self._found: set[tuple[Unfinished, State]] = set()
        # The sandboxes that ran at the last round.
        self._running: set[str] = set()
        self._waiting: deque[NewTransition] = deque()
        self._reported = asyncio.Event()
        self._lost = 0

    def report(self, one: Transition) -> None:
        """Queue a transition; one of an unknown tenant is ignored."""
        if (tenant := self._tenants.get(one.tenant)) is not None:
            at_us = self._clock()
            new = NewTransition(tenant, one.name, one.sandbox, one.state, one.reason, at_us, observed=one.observed)
            self._keep(new)

    async def complete(self, engine: Listing) -> int:
        """Write the transitions of this engine's sandboxes that were never reported; return how many.

        Compares the last reported states with the current ones. Only a difference that the previous round saw too is
        written: its cause reports it a moment later. Raises SandboxError and Unavailable.
        """
        unfinished = await self._store.unfinished(await engine.id(), since=self._since)
        owned = await self._owned(engine)
        doubtful = [one for one in unfinished if _is_doubtful(one, engine, owned)]
        there: dict[str, ListedSandbox] = {}
        for tenant in {one.tenant for one in doubtful}:
            there |= {one.id: one for one in await engine.listed(tenant)}
        looked = ((one, *_state_of(there.get(one.sandbox))) for one in doubtful)
        found = {(one, state): why for one, state, why in looked if state != one.state and why}
        sure = {pair: why for pair, why in found.items() if pair in self._found}
        for (one, state), why in sure.items():
            self._keep(NewTransition(one.tenant, one.thread, one.sandbox, state, why, self._clock(), after=one.id))
        self._found = found.keys() - sure.keys()
        # Everything before the first unfinished one has finished.
        self._since = min((one.id for one in unfinished), default=self._since)
        return len(sure)

    async def _has_ended(self, engine: Listing) -> bool:
        """Return whether a sandbox that ran at the last round has stopped; asks only the engine."""
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
        self._reported.set()

    @contextlib.asynccontextmanager
    async def writing(self, engine_id: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Write transitions until the block ends, and the rest then, if the database takes it."""
        try:
            async with in_background(self._write_forever(engine_id), "sandbox history"):
                yield
        finally:
            # Once that task has ended: what it was about to write is queued again.
            with contextlib.suppress(Unavailable):
                await self._write(engine_id)

    def completing(self, engine: Listing) -> AbstractAsyncContextManager[None]:
        return in_background(self._complete_forever(engine), "sandbox history, completed")

    async def _complete_forever(self, engine: Listing) -> None:
        for look in itertools.count():
            try:
                due = look % _COMPLETE_LOOKS == 0 or self._found or await self._has_ended(engine)
                if due and (found := await self.complete(engine)):
                    log.info("transitions of sandboxes were found that had not been reported", sandboxes=found)
            except (SandboxError, Unavailable) as error:
                log.warning("the history of sandboxes is not completed for now", error=str(error))
            except Exception:
                log.exception("the history of sandboxes was not completed")
            await asyncio.sleep(_LOOK_AGAIN_S if self._found else _LOOK_S)

    async def _write_forever(self, engine_id: Callable[[], Awaitable[str]]) -> None:
        while True:
            await self._reported.wait()
            await asyncio.sleep(_GATHER_S)
            try:
                await self._write(engine_id)
            except Unavailable as error:
                log.warning("the history of sandboxes is not written for now", error=str(error))
                await asyncio.sleep(_RETRY_S)
            except Exception:
                log.exception("the history of sandboxes was not written")
                self._waiting.clear()

    async def _write(self, engine_id: Callable[[], Awaitable[str]]) -> None:
        self._reported.clear()
        while self._waiting:
            if self._lost:
                log.warning("the history of sandboxes has a gap", lost=self._lost)
                self._lost = 0
            engine = ""
            with contextlib.suppress(SandboxError):  # an engine does not answer, but its loss is still worth recording
                engine = await engine_id()
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._store.add(engine, batch)
            except BaseException:
                self._waiting.extendleft(reversed(batch))
                self._reported.set()
                raise


def _state_of(found: ListedSandbox | None) -> tuple[State, str]:
    """Return a sandbox's state, and the reason to write with it; "" if there is nothing to write."""
    if found is None:
        return "removed", _FOUND["removed"]
    return found.state, found.reason if found.state == "failed" else _FOUND.get(found.state, "")


def _is_doubtful(one: Unfinished, engine: Listing, owned: Mapping[str, bool]) -> bool:
    """Return whether a sandbox may be in another state than the reported one; a cheap check."""
    if one.state == "creating" or owned.get(one.sandbox) != (one.state == "running"):
        return True
    spec = SandboxSpec(one.tenant, one.thread, image="")
    return (engine.stopped(spec) == one.sandbox) != (one.state == "idle_stopped")
