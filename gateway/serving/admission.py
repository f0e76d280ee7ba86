"""Admission: which calls start now, which wait, and which are refused, decided before a call costs anything.

    in progress   calls_at_once of all tenants, calls_at_once_per_tenant of one. Under load (LoadLimit) fewer of the
                  calls that started a moment ago, and two per processor of one tenant if another calls too. Tenants
                  with nothing in progress may use a quarter more, so that long calls of others do not keep them out
    queued        queue_per_tenant of one tenant, for queue_wait_s or until the call's own deadline
    refused       Overloaded, with a time after which a retry is likely to succeed

A free slot goes to the tenant with the fewest calls in progress, and among equals to the one served least recently:
one tenant's queue delays another by one turn at most. Streams that only wait (watching, following, moving a file at the
client's speed) are counted separately, as are the bytes of requests and all open RPCs (limits.py). Work that goes on
without its caller counts as its tenant's, but does not keep the tenant's next call out.

The load limit follows how long work waits for a processor:

    lag         how late a timer of the event loop ends after all ready callbacks ran: the delay of each step of a call
    pressure    the share of time in which something on this machine waits for a processor (Linux PSI). It shows
                sandboxes that wait for each other, which the loop does not notice. Without PSI only the lag counts

While either is too high, the limit repeatedly drops to a tenth below the current load, down to `least`, which keeps all
processors busy: more calls would each take longer and none would finish sooner. While neither is and calls wait, it
grows by a quarter, up to `most`. It applies to calls that started a moment ago: long ones, such as a build or a program
that sleeps, keep no other out.
"""

import asyncio
import contextlib
import contextvars
import functools
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from gateway.config.operation_settings import AdmissionSettings
from gateway.errors import Overloaded
from gateway.serving.fair_loop import call_last
from gateway.serving.limits import Budget, OpenRpcs, Tally

_TICK_S = 0.1
# What a call of a dozen steps may lose in each.
_LAG_S = 0.02
_PRESSURE = 0.8
# The weight of the newest tick: a single pause, such as a garbage collection, does not count much.
_NEWEST_TICK = 0.15
_DOWN, _UP = 10, 4
_RETRY_AT_LEAST_S, _RETRY_AT_MOST_S = 0.05, 30.0
_PSI = Path("/proc/pressure/cpu")
_PSI_TOTAL_US = re.compile(rb"^some .*total=(\d+)")
# The weight of the newest call in the average service time.
_NEWEST = 0.05
# A call that runs for longer waits for something other than the processors, or has had its share of them.
_RECENT_S = 5.0
# So many calls keep a processor busy: much of a call's time is waiting for its sandbox and for the database.
_CALLS_OF_A_PROCESSOR = 8
# So few of one tenant nearly do; with more, each step of another tenant's call waits for more of them.
_TENANT_CALLS_OF_A_PROCESSOR = 2
_CONTENDED_S = 1.0
# Cancellations take no time and wait for no place; more of one tenant at once would end nothing sooner.
_CANCELLATIONS_PER_TENANT = 32


class LoadLimit:
    """The limit of one process."""

    def __init__(self, least: int, most: int) -> None:
        """Start at `most`: the right limit is known only after it was tried."""
        self.least = min(least, most)
        self.most = most
        self.now = most
        self._lag_s = 0.0
        self._pressure = 0.0

    def observe(self, lag_s: float, pressure: float, at_work: int, waiting: int) -> None:
        """Process the lag and pressure of one tick, the number of calls under the limit, and of those that wait."""
        self._lag_s += _NEWEST_TICK * (max(0.0, lag_s) - self._lag_s)
        self._pressure += _NEWEST_TICK * (max(0.0, pressure) - self._pressure)
        if self._lag_s > _LAG_S or self._pressure > _PRESSURE:
            self.now = max(self.least, min(self.now, at_work - max(1, at_work // _DOWN)))
        elif waiting:
            self.now = min(self.most, self.now + max(1, self.now // _UP))


@contextlib.asynccontextmanager
async def following(tick: Callable[[float, float], None]) -> AsyncIterator[None]:
    """Call `tick` with the loop's lag in seconds and the pressure, ten times a second, until the block ends."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    with _waited_s() as waited_s:
        last_s, last_waited_s = loop.time(), waited_s()

        def begin() -> None:
            call_last(loop, measure)

        def measure() -> None:
            nonlocal last_s, last_waited_s
            now_s, now_waited_s = loop.time(), waited_s()
            passed_s = now_s - last_s
            tick(passed_s - _TICK_S, (now_waited_s - last_waited_s) / passed_s if passed_s else 0.0)
            last_s, last_waited_s = now_s, now_waited_s
            timers.append(loop.call_later(_TICK_S, begin, context=context))

        timers = deque([loop.call_later(_TICK_S, begin, context=context)], maxlen=1)
        try:
            yield
        finally:
            timers[0].cancel()


@contextlib.contextmanager
def _waited_s() -> Iterator[Callable[[], float]]:
    """Return a function for the total time that something waited for a processor; 0 without PSI."""
    try:
        psi = _PSI.open("rb", buffering=0)
    except OSError:
        yield lambda: 0.0
        return
    with psi:

        def read() -> float:
            try:
                found = _PSI_TOTAL_US.match(os.pread(psi.fileno(), 256, 0))
            except OSError:  # a kernel with PSI switched off opens the file but does not read it
                found = None
            return int(found[1]) / 1_000_000 if found else 0.0

        yield read


@dataclass(frozen=True)
class AdmissionSnapshot:
    """What is in progress now, and counts since the start."""

    at_work: int
    limit: int
    waiting: int
    streams: int
    request_bytes: int
    answer_bytes: int
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
        """Requests in progress or queued, and messages of streams until the next one is read."""
        self.answers = Budget(self._settings.answer_bytes_per_tenant, self._settings.answer_bytes)
        """Answers that their peers have not read yet."""
        self._uploads = Budget(self._settings.uploads_per_tenant, self._settings.uploads)
        self._at_work = Tally()
        self._lingering = Tally()
        self._cancelling = Tally()
        self._total = 0
        # The calls that started a moment ago, in order, with their tenant and start time.
        self._recent: dict[object, tuple[str, float]] = {}
        self._recent_of = Tally()
        # The tenant of the last started call, and when the tenant last changed.
        self._latest = ""
        self._alternated_s = clock() - _CONTENDED_S
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._streams = Tally()
        self._turn = 0
        self._served: dict[str, int] = {}
        self._service_time_s = 0.0
        self._admitted = self._refused = self._waited = 0

    async def begin(self, tenant: str, *, size_bytes: int = 0, remaining_s: float | None = None) -> Callable[[], None]:
        """Take a place, after a wait if necessary; return the function that frees it. Raises Overloaded.

        `size_bytes` is the size of the request in memory, `remaining_s` the time until the call's deadline.
        """
        if not self.requests.fits(tenant, size_bytes):
            raise self._overloaded(tenant, "the requests of this tenant in progress are too large together")
        if not self.answers.fits(tenant, 0):
            raise self._overloaded(tenant, "the unread answers to this tenant are too large together")
        self.requests.add(tenant, size_bytes)
        try:
            place = await self._place(tenant, remaining_s)
        except BaseException:
            self.requests.add(tenant, -size_bytes)
            raise
        started_s = self._clock()

        def end() -> None:
            self.requests.add(tenant, -size_bytes)
            self._service_time_s += _NEWEST * (self._clock() - started_s - self._service_time_s)
            self._leave(tenant, place)

        return end

    def stream(self, tenant: str) -> Callable[[], None]:
        """Count a stream that waits more than it works, until the returned function is called; raises Overloaded."""
        limit = self._settings.streams_per_tenant
        return self._counted(self._streams, tenant, limit, f"{limit} streams of this tenant are open, the limit")

    def cancellation(self, tenant: str) -> Callable[[], None]:
        """Count a call that ends work, and so waits for no place, in the same way; raises Overloaded."""
        limit = _CANCELLATIONS_PER_TENANT
        return self._counted(self._cancelling, tenant, limit, f"{limit} cancellations of this tenant are in progress")

    async def upload(self, tenant: str) -> Callable[[], None]:
        """Wait until a tenant's upload may be read; return the function that ends it."""
        await self._uploads.take(tenant, 1)
        return functools.partial(self._uploads.add, tenant, -1)

    def open_rpc(self, tenant: str) -> Callable[[], None]:
        """Count an RPC as open until the returned function is called; raises Overloaded."""
        try:
            return self._open.one(tenant)
        except Overloaded:
            self._refused += 1
            raise

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other limits from now on, without effect on what is in progress."""
        self._settings = settings
        self._limit = _limit(settings)
        self.requests.configure(settings.request_bytes_per_tenant, settings.request_bytes)
        self._uploads.configure(settings.uploads_per_tenant, settings.uploads)
        self.answers.configure(settings.answer_bytes_per_tenant, settings.answer_bytes)

    def heeding_load(self) -> AbstractAsyncContextManager[None]:
        """Adjust the limit to the load of the event loop until the block ends."""
        return following(self.observe)

    def observe(self, lag_s: float, pressure: float) -> None:
        """Adjust the limit to how long work waits for a processor, and start queued calls."""
        before_s = self._clock() - _RECENT_S
        while self._recent and self._recent[first := next(iter(self._recent))][1] < before_s:
            self._settle(first)
        self._limit.observe(lag_s, pressure, len(self._recent), self._waiting())
        self._start_queued()

    def lingering(self, tenant: str) -> Callable[[], None]:
        """Count work without a caller as a call of its tenant; return the function that ends that."""
        self._total += 1
        self._lingering.add(tenant)
        work = object()
        self._add_recent(tenant, work)

        def end() -> None:
            self._total -= 1
            self._settle(work)
            self._lingering.add(tenant, -1)
            self._start_queued()

        return end

    def snapshot(self) -> AdmissionSnapshot:
        sizes = self.requests.in_all, self.answers.in_all
        now = self._total, self._limit.now, self._waiting(), self._streams.total(), *sizes
        return AdmissionSnapshot(*now, self._admitted, self._refused, self._waited)

    def _counted(self, counter: Tally, tenant: str, limit: int, why: str) -> Callable[[], None]:
        if counter[tenant] >= limit:
            raise self._overloaded(tenant, why)
        counter.add(tenant)
        return functools.partial(counter.add, tenant, -1)

    async def _place(self, tenant: str, remaining_s: float | None) -> object:
        if tenant not in self._queues and self._may_begin(tenant):
            self._begin(tenant, taken := object())
            return taken
        settings = self._settings
        queue = self._queues.setdefault(tenant, deque())
        if len(queue) >= settings.queue_per_tenant:
            self._forget_if_empty(tenant)
            raise self._overloaded(tenant, f"{settings.queue_per_tenant} calls of this tenant are queued")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._waited += 1
        wait_s = settings.queue_wait_s if remaining_s is None else min(settings.queue_wait_s, max(0.0, remaining_s))
        try:
            async with asyncio.timeout(wait_s):
                await place
        except (TimeoutError, asyncio.CancelledError) as error:
            self._give_up(tenant, place)
            if isinstance(error, TimeoutError):
                raise self._overloaded(tenant, f"no place was free within {wait_s:.1f} s") from None
            raise
        return place

    def _give_up(self, tenant: str, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._leave(tenant, place)  # it was given in the same moment
            return
        queue = self._queues.get(tenant)
        if queue is not None and place in queue:
            queue.remove(place)
            self._forget_if_empty(tenant)

    def _may_begin(self, tenant: str) -> bool:
        at_work, settings = self._at_work[tenant], self._settings
        limits = ((self._total, settings.calls_at_once), (len(self._recent), self._limit.now))
        if not at_work:
            return all(count < limit + max(1, limit // 4) for count, limit in limits)
        if self._recent_of[tenant] >= _TENANT_CALLS_OF_A_PROCESSOR * (os.cpu_count() or 1) and self._is_contended():
            return False
        own = at_work + self._lingering[tenant]
        return own < settings.calls_at_once_per_tenant and all(count < limit for count, limit in limits)

    def _is_contended(self) -> bool:
        """Return whether the processors are overloaded, by more than one tenant."""
        return self._limit.now < self._settings.calls_at_once and self._clock() - self._alternated_s < _CONTENDED_S

    def _add_recent(self, tenant: str, work: object) -> None:
        self._recent[work] = tenant, self._clock()
        self._recent_of.add(tenant)

    def _settle(self, work: object) -> None:
        if work in self._recent:
            tenant, _ = self._recent.pop(work)
            self._recent_of.add(tenant, -1)

    def _begin(self, tenant: str, place: object) -> None:
        self._add_recent(tenant, place)
        if tenant != self._latest:
            self._latest, self._alternated_s = tenant, self._clock()
        self._at_work.add(tenant)
        self._total += 1
        self._admitted += 1
        self._turn += 1
        self._served[tenant] = self._turn

    def _leave(self, tenant: str, place: object) -> None:
        self._settle(place)
        self._total -= 1
        self._at_work.add(tenant, -1)
        self._start_queued()
        if tenant not in self._at_work and tenant not in self._queues:
            self._served.pop(tenant, None)

    def _start_queued(self) -> None:
        while waiting := [tenant for tenant in self._queues if self._may_begin(tenant)]:
            next_ = min(waiting, key=lambda tenant: (self._at_work[tenant], self._served.get(tenant, 0)))
            # A call cancelled a moment ago is still in the queue; it takes no turn.
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
