"""SandboxPool: sandboxes that are ready before a thread asks for one.

A thread that has neither a sandbox nor files gets a pooled sandbox of the kind that its spec asks for, if one is ready:
that takes milliseconds. Every other creation goes to the inner creator, and so does one whose pooled sandbox failed its
check. The last of several of a kind is reserved for a tenant that has not just taken one, so that one tenant's burst
does not leave the others without.

The number of pooled sandboxes follows demand, between a fixed minimum and a limit for all kinds
together. They are made in the background, a few at a time, and one by one while a caller waits for a creation. They
are not paused meanwhile: threads that come a little faster than sandboxes are made would then never find one ready.
Dead, old and surplus ones are removed; all of them when the engine is full, and at the end.

    pool = SandboxPool(creator, docker, docker.pool, limit=8)
    pool.keep(PoolKind.of(spec), 1)             # at all times, whatever the demand
    pool.begin()                                # without it, only tend() makes any
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sandbox.engines.background import BackgroundTasks
from sandbox.engines.engine import Creator, Register, is_new
from sandbox.engines.pooled_sandbox import PooledRefused, PooledSandbox, PoolKind, PoolSource
from sandbox.errors import EngineFull, ImageMissing, SandboxError
from sandbox.sandbox import Sandbox, SandboxSpec

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Hashable)

# A kind that was asked for has one pooled sandbox at least for so long.
MEMORY_S = 300.0
# How often the pool is checked when nothing happens, and how often what its source knows to be dead is dropped.
_LOOK_S = 15.0
_GLANCE_S = 2.0


class Demand:
    """What was asked for of one kind: as many are worth having as are asked for while one is made.

    `clock` is in seconds, from any moment on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked_s: deque[float] = deque(maxlen=1024)
        self._level = 0.0
        self._level_s = clock()
        # A guess, until the first was made.
        self._making_s = 2.0

    def asked(self) -> None:
        now_s = self._clock()
        self._asked_s.append(now_s)
        while now_s - self._asked_s[0] > self._making_s:
            self._asked_s.popleft()
        self._level = max(self._decayed(now_s), float(len(self._asked_s)))
        self._level_s = now_s

    def made(self, making_s: float) -> None:
        # The newest making counts as much as all before it.
        self._making_s += 0.5 * (making_s - self._making_s)

    @property
    def wanted(self) -> int:
        """How many pooled sandboxes to have; 0 without recent requests."""
        now_s = self._clock()
        if not self._asked_s or now_s - self._asked_s[-1] > MEMORY_S:
            return 0
        return max(1, math.ceil(self._decayed(now_s) - 0.5))

    def _decayed(self, now_s: float) -> float:
        # Half of what a busy moment asked for is still kept ready so much later.
        return self._level * math.exp2((self._level_s - now_s) / 60.0)


def shared_out(wanted: Mapping[Kind, int], limit: int) -> dict[Kind, int]:
    """Return how many each kind gets of a limit: one after another in turns, so that no kind leaves another without."""
    given = dict.fromkeys(wanted, 0)
    left = limit
    while left > 0:
        short = [kind for kind in wanted if given[kind] < wanted[kind]][:left]
        if not short:
            break
        for kind in short:
            given[kind] += 1
        left -= len(short)
    return given


@dataclass(frozen=True)
class _Ready:
    pooled: PooledSandbox
    made_s: float


@dataclass(eq=False)
class _Kind:
    """The pooled sandboxes of one kind, and the demand for it."""

    demand: Demand
    always: int = 0
    ready: list[_Ready] = field(default_factory=list)  # the oldest first
    took_s: dict[str, float] = field(default_factory=dict)  # when each tenant last did
    making: int = 0
    failures: int = 0
    retry_at_s: float = 0.0

    @property
    def wanted(self) -> int:
        # One more than several: the last is reserved for another tenant.
        asked = self.demand.wanted
        return max(self.always, asked + 1 if asked > 1 else asked)


class SandboxPool:
    """Satisfies Creator. `source` makes the pooled sandboxes; `limit` is their number at most, of all kinds.

    `pulls` says which images are pulled by the first call that needs them; the pool itself pulls none. `clock` is in
    seconds, from any moment on.
    """

    def __init__(
        self,
        inner: Creator,
        register: Register,
        source: PoolSource,
        *,
        limit: int,
        pulls: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self._register = register
        self._source = source
        self._limit = limit
        self._pulls = pulls
        self._clock = clock
        self._kinds: dict[PoolKind, _Kind] = {}
        self._waiting = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._tender: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()
        self.claims: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many pooled sandboxes are `ready`, and how many are being made."""
        kinds = list(self._kinds.values())
        return {"ready": sum(len(kind.ready) for kind in kinds), "making": sum(kind.making for kind in kinds)}

    def keep(self, kind: PoolKind, number: int) -> None:
        """Keep so many of a kind ready, whatever the demand."""
        self._known(kind).always = number
        self._wake.set()

    def forget(self, kind: PoolKind) -> None:
        """Keep none of a kind ready, until it is asked for again."""
        known = self._kinds.get(kind)
        if known is not None:
            known.always, known.demand = 0, Demand(self._clock)
        self._wake.set()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        kind = PoolKind.of(spec)
        if is_new(self._register, spec) and not self._closed:
            claimed = await self._claimed(kind, spec)
            if claimed is not None:
                return claimed
        self._waiting += 1
        try:
            return await self.inner.create(spec)
        except EngineFull:
            if not await self._make_room():
                raise
            return await self.inner.create(spec)
        finally:
            self._waiting -= 1
            self._wake.set()

    async def _claimed(self, kind: PoolKind, spec: SandboxSpec) -> Sandbox | None:
        ready = self._pop(kind, spec.tenant)
        if ready is None:
            self._count(kind, "miss")
            return None
        try:
            claimed = await self._source.claim(ready.pooled, spec)
        except PooledRefused:
            # The others may have the same fault: a changed image, for instance.
            self._count(kind, "refused")
            await self._drop(self._known(kind))
            return None
        finally:
            self._wake.set()
        if claimed is not None:
            self._count(kind, "hit")
        # Else the thread has files: the pooled sandbox is still unclaimed.
        elif self._closed or kind not in self._kinds or not ready.pooled.alive:
            await self._discarded(ready.pooled)
        else:
            self._kinds[kind].ready.insert(0, ready)
        return claimed

    def _pop(self, kind: PoolKind, tenant: str) -> _Ready | None:
        """Take a pooled sandbox out, so that no other call can."""
        known = self._kinds.get(kind)
        if known is None:
            return None
        self._drop_dead(known)
        now_s = self._clock()
        # A tenant that took one does not get the last one for so long: its burst, and the making of the next one, are
        # over then.
        took_lately = now_s - known.took_s.get(tenant, float("-inf")) < 10.0
        # Where one is all that is wanted, a tenant that is alone would only wait: the next one is made at once.
        if not known.ready or (took_lately and len(known.ready) == 1 and self._given()[kind] > 1):
            return None
        known.took_s[tenant] = now_s
        return known.ready.pop(0)

    def _drop_dead(self, known: _Kind) -> None:
        for dead in [ready for ready in known.ready if not ready.pooled.alive]:
            known.ready.remove(dead)
            self._background.begin(self._discarded(dead.pooled))

    def _count(self, kind: PoolKind, result: str) -> None:
        self.claims[result] += 1
        self._known(kind).demand.asked()
        self._wake.set()

    def _known(self, kind: PoolKind) -> _Kind:
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(Demand(self._clock))
        return self._kinds[kind]

    async def _make_room(self) -> bool:
        """Remove every pooled sandbox for one that the engine is too full to make; return whether there were any."""
        for known in self._kinds.values():
            self._failed(known)
        return any(await asyncio.gather(*(self._drop(known) for known in self._kinds.values())))

    async def _drop(self, known: _Kind) -> int:
        gone, known.ready = known.ready, []
        await asyncio.gather(*(self._discarded(ready.pooled) for ready in gone))
        return len(gone)

    def begin(self) -> None:
        if self._tender is None and self._limit > 0 and not self._closed:
            self._tender = asyncio.create_task(self._tend_forever())

    async def tend(self) -> None:
        """Check the pool once: remove what is dead, old or surplus, make what is missing, and return."""
        await self._weed()
        while self._begin_making() or self.counts["making"]:
            while self._begin_making():
                pass
            await self.settled()
        await self.settled()

    async def settled(self) -> None:
        await self._background.settled()

    async def drain(self) -> None:
        """Remove every pooled sandbox, which no later process takes over, and make no more. Idempotent."""
        self._closed = True
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.wait({self._tender})
        await self.settled()
        await asyncio.gather(*(self._drop(known) for known in self._kinds.values()))

    async def _tend_forever(self) -> None:
        looked_s = float("-inf")
        while True:
            if self._clock() - looked_s >= _LOOK_S:
                await self._weed()
                looked_s = self._clock()
            for known in self._kinds.values():
                self._drop_dead(known)
            while self._begin_making():
                pass
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GLANCE_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _weed(self) -> None:
        given = self._given()
        for kind, known in list(self._kinds.items()):
            looked_at = list(known.ready)
            fit = await asyncio.gather(*(self._is_fit(ready) for ready in looked_at))
            unfit = [ready for ready, is_fit in zip(looked_at, fit, strict=True) if not is_fit]
            # Others may have been taken or made meanwhile: those are left alone.
            kept = [ready for ready in known.ready if ready not in unfit]
            kept = kept[max(0, len(kept) - given[kind]) :]
            for ready in known.ready:
                if ready not in kept:
                    self._background.begin(self._discarded(ready.pooled))
            known.ready = kept
            if not known.wanted and not known.ready and not known.making:
                del self._kinds[kind]

    async def _is_fit(self, ready: _Ready) -> bool:
        # By then its image's name may be another image's.
        return self._clock() - ready.made_s < 1800.0 and await ready.pooled.ping()

    def _given(self) -> dict[PoolKind, int]:
        return shared_out({kind: known.wanted for kind, known in self._kinds.items()}, self._limit)

    def _begin_making(self) -> bool:
        """Begin to make one more if one is missing and few are being made; return whether it was begun."""
        counts = self.counts
        busy = counts["making"] >= (1 if self._waiting else 2)
        if self._closed or busy or sum(counts.values()) >= self._limit:
            return False
        now_s = self._clock()
        shares = {}
        for kind, number in self._given().items():
            known = self._kinds[kind]
            there = len(known.ready) + known.making
            if there < number and now_s >= known.retry_at_s:
                shares[kind] = there / number
        if not shares:
            return False
        kind = min(shares, key=shares.__getitem__)
        known = self._kinds[kind]
        known.making += 1
        self._background.begin(self._make(kind, known))
        return True

    async def _make(self, kind: PoolKind, known: _Kind) -> None:
        began_s = self._clock()
        try:
            pooled = await self._source.make_pooled(kind)
        except (SandboxError, OSError) as error:
            if not known.failures:
                if isinstance(error, ImageMissing) and error.image and self._pulls(error.image):
                    said = "the pool has no sandbox of image %s until the first call that needs it has it pulled"
                    log.info(said, kind.image)
                else:
                    log.warning("no sandbox of image %s can be made for the pool: %s", kind.image, error)
            self._failed(known)
            return
        finally:
            known.making -= 1
            self._wake.set()
        known.failures = 0
        known.demand.made(self._clock() - began_s)
        if self._closed:
            await self._discarded(pooled)
            return
        known.ready.append(_Ready(pooled, self._clock()))

    def _failed(self, known: _Kind) -> None:
        known.retry_at_s = self._clock() + min(2.0 * 2**known.failures, 300.0)
        known.failures = min(known.failures + 1, 16)

    async def _discarded(self, pooled: PooledSandbox) -> None:
        try:
            await self._source.discard(pooled)
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", pooled.id, error)
