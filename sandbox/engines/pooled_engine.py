"""PooledEngine: an engine around an engine that has sandboxes ready before anybody asks for one.

A thread that has neither a sandbox nor files gets a pooled sandbox of the kind that its spec asks for, if there is one:
that takes milliseconds. Every other creation goes the engine's ordinary way, and so does one whose pooled sandbox was
found unfit. The last of several of a kind is for a tenant that has not just taken one: another's burst does not leave
it without.

How many pooled sandboxes there are follows demand (pool_demand.py), between what is always wanted and a limit for all
kinds together. They are made in the background, a few at a time, and one by one while somebody waits for a sandbox to
be made: with none, threads that come a little faster than sandboxes are made would never have a pool again. Dead, old
and surplus ones are removed; all of them when the engine has no room for a sandbox, and at the end.

    pooled = PooledEngine(docker, docker, limit=8)
    pooled.keep(PoolKind.of(spec), 1)          # at any time, whether or not somebody asks
    pooled.begin()                              # without it, nothing is made but by tend()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sandbox.engines.engine import Engine, is_new
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.engines.pool_demand import Demand, shared_out
from sandbox.engines.pooled_sandbox import PooledRefused, PooledSandbox, PoolKind, PoolSource
from sandbox.errors import EngineFull, ImageMissing, SandboxError
from sandbox.sandbox import Sandbox, SandboxSpec

log = logging.getLogger(__name__)

# How often pooled sandboxes are looked after when nothing happens.
_LOOK_S = 15.0
# By then its image's name may be another image's.
_OLD_AFTER_S = 1800.0
_MAKERS = 2
_FIRST_RETRY_S = 2.0
_LAST_RETRY_S = 300.0
# Who took a pooled sandbox gets no last one for so long: none is made while its burst is waited for, and then it takes
# a while.
_TOOK_S = 10.0


@dataclass(frozen=True)
class _Ready:
    pooled: PooledSandbox
    made_s: float


class _Kind:
    """What there is of one kind, and what is known of it."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.always = 0
        self.ready: list[_Ready] = []  # the oldest first
        self.took_s: dict[str, float] = {}  # when each tenant last did
        self.making = 0
        self.failures = 0
        self.retry_at_s = 0.0

    @property
    def wanted(self) -> int:
        # One more than several: the last is for another tenant, and whoever asks for these is to find them.
        asked = self.demand.wanted
        return max(self.always, asked + 1 if asked > 1 else asked)


class PooledEngine(EngineDecorator):
    """Around `engine`, whose pooled sandboxes `source` makes; `limit` is how many there are at most, of all kinds.

    `pulls` says of which images the first call that needs one has it pulled; the pool itself pulls none. `clock` is in
    seconds, from any moment on.
    """

    def __init__(
        self,
        engine: Engine,
        source: PoolSource,
        *,
        limit: int,
        pulls: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine)
        self._source = source
        self._limit = limit
        self._pulls = pulls
        self._clock = clock
        self._kinds: dict[PoolKind, _Kind] = {}
        self._waiting = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._tender: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.claims: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many pooled sandboxes are `ready`, and how many are being made."""
        kinds = list(self._kinds.values())
        return {"ready": sum(len(kind.ready) for kind in kinds), "making": sum(kind.making for kind in kinds)}

    def keep(self, kind: PoolKind, number: int) -> None:
        """Want so many of a kind whether or not somebody asks."""
        self._known(kind).always = number
        self._wake.set()

    def forget(self, kind: PoolKind) -> None:
        """Want none of a kind, until somebody asks again."""
        known = self._kinds.get(kind)
        if known is not None:
            known.always, known.demand = 0, Demand(self._clock)
        self._wake.set()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of a tenant and thread: a pooled one, if it is new and one is ready, else the engine's."""
        kind = PoolKind.of(spec)
        if is_new(self.engine, spec) and not self._closed:
            claimed = await self._claimed(kind, spec)
            if claimed is not None:
                return claimed
        with self._somebody_waits():
            try:
                return await self.engine.create(spec)
            except EngineFull:
                if not await self._make_room():
                    raise
            return await self.engine.create(spec)

    async def _claimed(self, kind: PoolKind, spec: SandboxSpec) -> Sandbox | None:
        ready = self._pop(kind, spec.tenant)
        if ready is None:
            self._count(kind, "miss")
            return None
        claimed, kept = None, False
        try:
            claimed = await self._source.claim(ready.pooled, spec)
            kept = claimed is None  # it has files: the pooled sandbox is still nobody's
        except PooledRefused:
            # What was wrong with this one, its image by now, say, may be wrong with the others.
            self._count(kind, "refused")
            await self._drop(self._known(kind))
            return None
        finally:
            if kept:
                await self._put_back(kind, ready)
            self._wake.set()
        if claimed is not None:
            self._count(kind, "hit")
        return claimed

    def _pop(self, kind: PoolKind, tenant: str) -> _Ready | None:
        """Take a pooled sandbox away, before anybody else can."""
        known = self._kinds.get(kind)
        if known is None:
            return None
        for dead in [ready for ready in known.ready if not ready.pooled.alive]:
            known.ready.remove(dead)
            self._begin(self._discarded(dead.pooled))
        now_s = self._clock()
        took_lately = now_s - known.took_s.get(tenant, float("-inf")) < _TOOK_S
        # Where one is all that is wanted, a tenant that is alone would only wait: the next one is made at once.
        if not known.ready or (took_lately and len(known.ready) == 1 and self._given()[kind] > 1):
            return None
        known.took_s[tenant] = now_s
        return known.ready.pop(0)

    async def _put_back(self, kind: PoolKind, ready: _Ready) -> None:
        if self._closed or kind not in self._kinds or not ready.pooled.alive:
            await self._discarded(ready.pooled)
            return
        self._kinds[kind].ready.insert(0, ready)

    def _count(self, kind: PoolKind, result: str) -> None:
        self.claims[result] += 1
        self._known(kind).demand.asked()
        self._wake.set()

    def _known(self, kind: PoolKind) -> _Kind:
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(Demand(self._clock))
        return self._kinds[kind]

    @contextmanager
    def _somebody_waits(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._wake.set()

    async def _make_room(self) -> bool:
        """Give up every pooled sandbox for a sandbox that the engine has no room for; return whether there were any."""
        for known in self._kinds.values():
            self._failed(known)
        return any(await asyncio.gather(*(self._drop(known) for known in self._kinds.values())))

    async def _drop(self, known: _Kind) -> int:
        """Give up what is ready of a kind; return how many that were."""
        gone, known.ready = known.ready, []
        await asyncio.gather(*(self._discarded(ready.pooled) for ready in gone))
        return len(gone)

    # --- in the background ---

    def begin(self) -> None:
        """Begin to make pooled sandboxes, and to look after them."""
        if self._tender is None and self._limit > 0 and not self._closed:
            self._tender = asyncio.create_task(self._tend_forever())

    async def tend(self) -> None:
        """Look once: remove what is dead, old or too much, and make what lacks; then return."""
        await self._weed()
        while self._begin_making() or self.counts["making"]:
            if not self._begin_making():
                await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        await self.settled()

    async def settled(self) -> None:
        """Wait for what is under way in the background."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def drain(self) -> None:
        """Remove every pooled sandbox, and make none any more. Draining again is no error."""
        self._closed = True
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.wait({self._tender})
        await self.settled()
        await asyncio.gather(*(self._drop(known) for known in self._kinds.values()))

    async def remove_workspaces(self) -> None:
        """Remove the pooled sandboxes, whose workspaces count as well, and then what the engine's does."""
        await self.drain()
        await self.engine.remove_workspaces()

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove the pooled sandboxes, which no later process takes over, and close the engine."""
        await self.drain()
        await self.engine.close(keep_sandboxes=keep_sandboxes)

    async def _tend_forever(self) -> None:
        looked_s = float("-inf")
        while True:
            if self._clock() - looked_s >= _LOOK_S:
                await self._weed()
                looked_s = self._clock()
            while self._begin_making():
                pass
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _weed(self) -> None:
        now_s = self._clock()
        given = self._given()
        for kind, known in list(self._kinds.items()):
            asked = [ready for ready in known.ready if now_s - ready.made_s < _OLD_AFTER_S]
            answers = await asyncio.gather(*(ready.pooled.ping() for ready in asked))
            well = {id(ready) for ready, answer in zip(asked, answers, strict=True) if answer}
            # Others may have been taken or made meanwhile: nothing of those is decided here.
            judged = {id(ready) for ready in asked}
            old = [ready for ready in known.ready if now_s - ready.made_s >= _OLD_AFTER_S]
            bad = [ready for ready in known.ready if id(ready) in judged and id(ready) not in well]
            kept = [ready for ready in known.ready if ready not in old and ready not in bad]
            surplus = kept[: max(0, len(kept) - given[kind])]
            known.ready = [ready for ready in kept if ready not in surplus]
            for ready in (*old, *bad, *surplus):
                self._begin(self._discarded(ready.pooled))
            if not known.wanted and not known.ready and not known.making:
                del self._kinds[kind]

    def _given(self) -> dict[PoolKind, int]:
        return shared_out({kind: known.wanted for kind, known in self._kinds.items()}, self._limit)

    def _begin_making(self) -> bool:
        """Begin to make one more pooled sandbox, if one lacks and few are being made; return whether it was begun."""
        making = sum(known.making for known in self._kinds.values())
        if self._closed or making >= (1 if self._waiting else _MAKERS):
            return False
        if sum(self.counts.values()) >= self._limit:
            return False
        now_s = self._clock()
        lacking = []
        for kind, number in self._given().items():
            known = self._kinds[kind]
            there = len(known.ready) + known.making
            if there < number and now_s >= known.retry_at_s:
                lacking.append((there / number, kind, known))
        if not lacking:
            return False
        _, kind, known = min(lacking, key=lambda one: one[0])
        known.making += 1
        self._begin(self._make(kind, known))
        return True

    async def _make(self, kind: PoolKind, known: _Kind) -> None:
        began_s = self._clock()
        try:
            pooled = await self._source.make_pooled(kind)
        except (SandboxError, OSError) as error:
            if not known.failures:
                self._tell_why(kind, error)
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

    def _tell_why(self, kind: PoolKind, error: SandboxError | OSError) -> None:
        if isinstance(error, ImageMissing) and error.image and self._pulls(error.image):
            log.info("the pool has no sandbox of image %s until the first call that needs it has it pulled", kind.image)
        else:
            log.warning("no sandbox of image %s can be made for the pool: %s", kind.image, error)

    def _failed(self, known: _Kind) -> None:
        known.retry_at_s = self._clock() + min(_FIRST_RETRY_S * 2**known.failures, _LAST_RETRY_S)
        known.failures = min(known.failures + 1, 16)

    async def _discarded(self, pooled: PooledSandbox) -> None:
        try:
            await self._source.discard(pooled)
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", pooled.id, error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
