"""Admission: who may work now, who waits and who is told to come back, decided before a call costs anything.

    at work     calls_at_once of all tenants, calls_at_once_per_tenant of one; of those that began a moment ago fewer
                while the processors have more to do than they can (load_limit.py), and then of one tenant no more
                than two a processor if another calls too; a quarter more for tenants with nothing at work, so that
                long calls of others keep nobody out
    waiting     queue_per_tenant of one, for queue_wait_s or as long as the call's own deadline lets it
    refused     Overloaded, with the time after which trying again is likely to help

A place that gets free goes to the tenant that has the fewest calls at work, and among equals to the one that was served
longest ago: what one tenant has queued delays another by no more than one turn. Streams that only wait (watching,
following, moving a file at the client's pace) are counted apart. So are the bytes of requests that work or wait, and
all RPCs that are open, whatever they do (open_rpcs.py). Work that goes on without its caller counts as its tenant's,
but for the first call of who comes back for it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from gateway.config.admission_settings import AdmissionSettings
from gateway.errors import Overloaded
from gateway.serving.budget import Budget
from gateway.serving.load_limit import LoadLimit, following
from gateway.serving.open_rpcs import OpenRpcs

# Of the service time that is remembered, how much the newest call counts.
_NEWEST = 0.05
_RETRY_AT_LEAST_S = 0.05
_RETRY_AT_MOST_S = 30.0
_RESERVE = 4
# A call that has been at work for longer waits for something else than the processors, or has had its part of them.
_MOMENT_S = 5.0
# So many keep a processor busy: of a call's time a good part is waiting for its sandbox and for the database.
_CALLS_OF_A_PROCESSOR = 8
# So few of one tenant keep it nearly as busy; with more, each step of another tenant's call waits for more of them.
_SHARE_OF_A_PROCESSOR = 2
_SHARED_S = 1.0
# Calls that end work wait for nobody, and take no time: more of one tenant at once end nothing sooner.
_FREEING_PER_TENANT = 32


@dataclass(frozen=True)
class AdmissionSnapshot:
    """What is under way now, and what was counted since the start."""

    at_work: int
    limit: int
    waiting: int
    streams: int
    request_bytes: int
    answer_bytes: int
    service_time_s: float
    admitted: int
    refused: int
    waited: int


class Admission:
    """Admits the calls of all tenants of a process."""

    def __init__(self, settings: AdmissionSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or AdmissionSettings()
        self._limit = _limit(self._settings)
        self._clock = clock
        self._open = OpenRpcs()
        self.requests = Budget(self._settings.request_bytes_per_tenant, self._settings.request_bytes)
        """Requests that work or wait, and the messages of streams until the next one is asked for."""
        self.answers = Budget(self._settings.answer_bytes_per_tenant, self._settings.answer_bytes)
        """Answers that their peers have not taken yet."""
        self._uploads = Budget(self._settings.uploads_per_tenant, self._settings.uploads)
        self._at_work: Counter[str] = Counter()
        self._lingering: Counter[str] = Counter()
        self._freeing: Counter[str] = Counter()
        self._in_all = 0
        # Those at work that began a moment ago, the first first, and when that was.
        self._young: dict[object, tuple[str, float]] = {}
        self._young_of: Counter[str] = Counter()
        # The tenant whose call began last, and when one of another tenant than before did.
        self._latest = ""
        self._alternated_s = clock() - _SHARED_S
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._streams: Counter[str] = Counter()
        self._turn = 0
        self._served: dict[str, int] = {}
        self._service_time_s = 0.0
        self._admitted = self._refused = self._waited = 0

    async def begin(self, tenant: str, *, size_bytes: int = 0, patience_s: float | None = None) -> Callable[[], None]:
        """Take a place among the calls at work, after a wait if need be; return what gives it back. Raises Overloaded.

        `size_bytes` is what the request takes in memory, `patience_s` what is left of the call's own time.
        """
        if not self.requests.fits(tenant, size_bytes):
            raise self._overloaded(tenant, "the requests of this tenant that are under way are too large together")
        if not self.answers.fits(tenant, 0):
            raise self._overloaded(tenant, "the answers to this tenant that were not read yet are too large together")
        self.requests.add(tenant, size_bytes)
        try:
            place = await self._place(tenant, patience_s)
        except BaseException:
            self.requests.add(tenant, -size_bytes)
            raise
        started_s = self._clock()

        def end() -> None:
            self.requests.add(tenant, -size_bytes)
            self._service_time_s += _NEWEST * (self._clock() - started_s - self._service_time_s)
            self._leave(tenant, place)

        return end

    @asynccontextmanager
    async def work(self, tenant: str, *, size_bytes: int = 0, patience_s: float | None = None) -> AsyncIterator[None]:
        """Hold a place as `begin` takes one until the block ends."""
        end = await self.begin(tenant, size_bytes=size_bytes, patience_s=patience_s)
        try:
            yield
        finally:
            end()

    @contextmanager
    def stream(self, tenant: str) -> Iterator[None]:
        """Hold one of the tenant's streams that wait more than they work; raises Overloaded."""
        most = self._settings.streams_per_tenant
        if self._streams[tenant] >= most:
            raise self._overloaded(tenant, f"{most} streams of this tenant are open, the most there may be: end some")
        self._streams[tenant] += 1
        try:
            yield
        finally:
            _take_off(self._streams, tenant, 1)

    @contextmanager
    def freeing(self, tenant: str) -> Iterator[None]:
        """Make a call that ends work, and so waits for no place; raises Overloaded past so many of a tenant at once."""
        if self._freeing[tenant] >= _FREEING_PER_TENANT:
            raise self._overloaded(tenant, f"{_FREEING_PER_TENANT} cancellations of this tenant are under way")
        self._freeing[tenant] += 1
        try:
            yield
        finally:
            _take_off(self._freeing, tenant, 1)

    async def upload(self, tenant: str) -> Callable[[], None]:
        """Wait until a tenant's upload may be read; return what ends it. Each has a few of its messages in memory."""
        await self._uploads.take(tenant, 1)
        return functools.partial(self._uploads.add, tenant, -1)

    def open_rpc(self, tenant: str) -> Callable[[], None]:
        """Count an RPC as open, whatever it does, until what is returned is called; raises Overloaded."""
        try:
            return self._open.one(tenant)
        except Overloaded:
            self._refused += 1
            raise

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other bounds from now on; what is under way stays."""
        self._settings = settings
        self._limit = _limit(settings)
        self.requests.configure(settings.request_bytes_per_tenant, settings.request_bytes)
        self._uploads.configure(settings.uploads_per_tenant, settings.uploads)
        self.answers.configure(settings.answer_bytes_per_tenant, settings.answer_bytes)

    def heeding_load(self) -> AbstractAsyncContextManager[None]:
        """Follow the load of the event loop until the block ends; without it the limit stays where it is."""
        return following(self.observe)

    def observe(self, lag_s: float, pressure: float) -> None:
        """Take how long work waits for a processor (load_limit.py), and let in whom the limit lets in now."""
        long_ago_s = self._clock() - _MOMENT_S
        while self._young and self._young[first := next(iter(self._young))][1] < long_ago_s:
            self._settle(first)
        self._limit.observe(lag_s, pressure, len(self._young), self._waiting())
        self._hand_out()

    def lingering(self, tenant: str) -> Callable[[], None]:
        """Count work that goes on without a caller as a call of its tenant at work; return what ends that."""
        self._in_all += 1
        self._lingering[tenant] += 1
        work = object()
        self._start(tenant, work)

        def end() -> None:
            self._in_all -= 1
            self._settle(work)
            _take_off(self._lingering, tenant, 1)
            self._hand_out()

        return end

    def snapshot(self) -> AdmissionSnapshot:
        """Return what is under way and what was counted; for metrics."""
        return AdmissionSnapshot(
            at_work=self._in_all,
            limit=self._limit.now,
            waiting=self._waiting(),
            streams=self._streams.total(),
            request_bytes=self.requests.in_all,
            answer_bytes=self.answers.in_all,
            service_time_s=self._service_time_s,
            admitted=self._admitted,
            refused=self._refused,
            waited=self._waited,
        )

    async def _place(self, tenant: str, patience_s: float | None) -> object:
        if tenant not in self._queues and self._may_begin(tenant):
            taken = object()
            self._begin(tenant, taken)
            return taken
        settings = self._settings
        queue = self._queues.setdefault(tenant, deque())
        if len(queue) >= settings.queue_per_tenant:
            self._forget_if_empty(tenant)
            raise self._overloaded(tenant, f"{settings.queue_per_tenant} calls of this tenant wait already")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._waited += 1
        wait_s = settings.queue_wait_s if patience_s is None else min(settings.queue_wait_s, max(0.0, patience_s))
        try:
            async with asyncio.timeout(wait_s):
                await place
        except TimeoutError:
            self._give_up(tenant, place)
            raise self._overloaded(tenant, f"no place was free within {wait_s:.1f} s") from None
        except asyncio.CancelledError:
            self._give_up(tenant, place)
            raise
        return place

    def _give_up(self, tenant: str, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._leave(tenant, place)  # it was given at the very moment, and nobody is here to use it
            return
        queue = self._queues.get(tenant)
        if queue is not None and place in queue:
            queue.remove(place)
            self._forget_if_empty(tenant)

    def _may_begin(self, tenant: str) -> bool:
        at_work, settings = self._at_work[tenant], self._settings
        bounds = ((self._in_all, settings.calls_at_once), (len(self._young), self._limit.now))
        if not at_work:
            return all(count < most + max(1, most // _RESERVE) for count, most in bounds)
        if self._young_of[tenant] >= _SHARE_OF_A_PROCESSOR * (os.cpu_count() or 1) and self._is_contended():
            return False
        share = at_work + self._lingering[tenant]
        return share < settings.calls_at_once_per_tenant and all(count < most for count, most in bounds)

    def _is_contended(self) -> bool:
        """Return whether the processors have too much to do, and not for one tenant alone."""
        return self._limit.now < self._settings.calls_at_once and self._clock() - self._alternated_s < _SHARED_S

    def _start(self, tenant: str, work: object) -> None:
        self._young[work] = tenant, self._clock()
        self._young_of[tenant] += 1

    def _settle(self, work: object) -> None:
        if work in self._young:
            tenant, _ = self._young.pop(work)
            _take_off(self._young_of, tenant, 1)

    def _begin(self, tenant: str, place: object) -> None:
        self._start(tenant, place)
        if tenant != self._latest:
            self._latest, self._alternated_s = tenant, self._clock()
        self._at_work[tenant] += 1
        self._in_all += 1
        self._admitted += 1
        self._turn += 1
        self._served[tenant] = self._turn

    def _leave(self, tenant: str, place: object) -> None:
        self._settle(place)
        self._in_all -= 1
        _take_off(self._at_work, tenant, 1)
        self._hand_out()
        if tenant not in self._at_work and tenant not in self._queues:
            self._served.pop(tenant, None)

    def _hand_out(self) -> None:
        while waiting := [tenant for tenant in self._queues if self._may_begin(tenant)]:
            next_ = min(waiting, key=lambda tenant: (self._at_work[tenant], self._served.get(tenant, 0)))
            # A call that was cancelled a moment ago is still in the queue, and takes nobody's turn.
            place = self._queues[next_].popleft()
            self._forget_if_empty(next_)
            if not place.done():
                self._begin(next_, place)
                place.set_result(None)

    def _waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def _forget_if_empty(self, tenant: str) -> None:
        if not self._queues.get(tenant, True):
            del self._queues[tenant]

    def _overloaded(self, tenant: str, why: str) -> Overloaded:
        self._refused += 1
        tenants = max(1, len(self._at_work.keys() | self._queues.keys()))
        share = max(1, min(self._settings.calls_at_once_per_tenant, self._limit.now // tenants))
        before = len(self._queues.get(tenant, ())) + self._at_work[tenant]
        retry_s = min(_RETRY_AT_MOST_S, max(_RETRY_AT_LEAST_S, self._service_time_s * (before + 1) / share))
        return Overloaded(f"{why}: make fewer calls at once, or try again in {retry_s:.2f} s", retry_s)


def _limit(settings: AdmissionSettings) -> LoadLimit:
    least = settings.calls_at_once_under_load or _CALLS_OF_A_PROCESSOR * (os.cpu_count() or 1)
    return LoadLimit(least, settings.calls_at_once)


def _take_off(counter: Counter[str], name: str, amount: int) -> None:
    counter[name] -= amount
    if not counter[name]:
        del counter[name]
