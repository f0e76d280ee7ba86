"""Admission: who may work now, who waits and who is told to come back, decided before a call costs anything.

    at work     calls_at_once of all tenants, calls_at_once_per_tenant of one; a quarter more for tenants with nothing
                at work, so that long calls of others keep nobody out
    waiting     queue_per_tenant of one, for queue_wait_s or as long as the call's own deadline lets it
    refused     Overloaded, with the time after which trying again is likely to help

A place that gets free goes to the tenant that has the fewest calls at work, and among equals to the one that was served
longest ago: what one tenant has queued delays another by no more than one turn. Streams that only wait (watching,
following, moving a file at the client's pace) are counted apart. So are the bytes of requests that work or wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gateway.errors import Overloaded
from gateway.serving.admission_settings import AdmissionSettings

# Of the service time that is remembered, how much the newest call counts.
_NEWEST = 0.05
_RETRY_AT_LEAST_S = 0.05
_RETRY_AT_MOST_S = 30.0
_RESERVE = 4


@dataclass(frozen=True)
class AdmissionSnapshot:
    """What is under way now, and what was counted since the start."""

    at_work: int
    waiting: int
    streams: int
    request_bytes: int
    service_time_s: float
    admitted: int
    refused: int
    waited: int


class Admission:
    """Admits the calls of all tenants of a process."""

    def __init__(self, settings: AdmissionSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or AdmissionSettings()
        self._clock = clock
        self._at_work: Counter[str] = Counter()
        self._in_all = 0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._streams: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._bytes_in_all = 0
        self._turn = 0
        self._served: dict[str, int] = {}
        self._service_time_s = 0.0
        self._admitted = self._refused = self._waited = 0

    @asynccontextmanager
    async def work(self, tenant: str, *, size_bytes: int = 0, patience_s: float | None = None) -> AsyncIterator[None]:
        """Hold a place among the calls at work, after a wait if need be; raises Overloaded.

        `size_bytes` is what the request takes in memory, `patience_s` what is left of the call's own time.
        """
        with self._room(tenant, size_bytes):
            await self._place(tenant, patience_s)
            started_s = self._clock()
            try:
                yield
            finally:
                self._service_time_s += _NEWEST * (self._clock() - started_s - self._service_time_s)
                self._leave(tenant)

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

    def configure(self, settings: AdmissionSettings) -> None:
        """Use other bounds from now on; what is under way stays."""
        self._settings = settings

    def snapshot(self) -> AdmissionSnapshot:
        """Return what is under way and what was counted; for metrics."""
        return AdmissionSnapshot(
            at_work=self._in_all,
            waiting=sum(map(len, self._queues.values())),
            streams=self._streams.total(),
            request_bytes=self._bytes_in_all,
            service_time_s=self._service_time_s,
            admitted=self._admitted,
            refused=self._refused,
            waited=self._waited,
        )

    @contextmanager
    def _room(self, tenant: str, size_bytes: int) -> Iterator[None]:
        settings = self._settings
        # One request is let in, however large: the server's own limit of a message holds for it.
        of_tenant, in_all = self._bytes[tenant], self._bytes_in_all
        if (of_tenant and of_tenant + size_bytes > settings.request_bytes_per_tenant) or (
            of_tenant and in_all + size_bytes > settings.request_bytes
        ):
            raise self._overloaded(tenant, "the requests of this tenant that are under way are too large together")
        self._bytes[tenant] += size_bytes
        self._bytes_in_all += size_bytes
        try:
            yield
        finally:
            self._bytes_in_all -= size_bytes
            _take_off(self._bytes, tenant, size_bytes)

    async def _place(self, tenant: str, patience_s: float | None) -> None:
        if tenant not in self._queues and self._may_begin(tenant):
            self._begin(tenant)
            return
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

    def _give_up(self, tenant: str, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._leave(tenant)  # it was given at the very moment, and nobody is here to use it
            return
        queue = self._queues.get(tenant)
        if queue is not None and place in queue:
            queue.remove(place)
            self._forget_if_empty(tenant)

    def _may_begin(self, tenant: str) -> bool:
        at_work, settings = self._at_work[tenant], self._settings
        if not at_work:
            return self._in_all < settings.calls_at_once + max(1, settings.calls_at_once // _RESERVE)
        return at_work < settings.calls_at_once_per_tenant and self._in_all < settings.calls_at_once

    def _begin(self, tenant: str) -> None:
        self._at_work[tenant] += 1
        self._in_all += 1
        self._admitted += 1
        self._turn += 1
        self._served[tenant] = self._turn

    def _leave(self, tenant: str) -> None:
        self._in_all -= 1
        _take_off(self._at_work, tenant, 1)
        self._hand_out()
        if tenant not in self._at_work and tenant not in self._queues:
            self._served.pop(tenant, None)

    def _hand_out(self) -> None:
        while next_ := min(
            (tenant for tenant in self._queues if self._may_begin(tenant)),
            key=lambda tenant: (self._at_work[tenant], self._served.get(tenant, 0)),
            default=None,
        ):
            # A call that was cancelled a moment ago is still in the queue, and takes nobody's turn.
            place = self._queues[next_].popleft()
            self._forget_if_empty(next_)
            if not place.done():
                self._begin(next_)
                place.set_result(None)

    def _forget_if_empty(self, tenant: str) -> None:
        if not self._queues.get(tenant, True):
            del self._queues[tenant]

    def _overloaded(self, tenant: str, why: str) -> Overloaded:
        self._refused += 1
        settings = self._settings
        tenants = max(1, len(self._at_work.keys() | self._queues.keys()))
        share = max(1, min(settings.calls_at_once_per_tenant, settings.calls_at_once // tenants))
        before = len(self._queues.get(tenant, ())) + self._at_work[tenant]
        retry_s = min(_RETRY_AT_MOST_S, max(_RETRY_AT_LEAST_S, self._service_time_s * (before + 1) / share))
        return Overloaded(f"{why}: make fewer calls at once, or try again in {retry_s:.2f} s", retry_s)


def _take_off(counter: Counter[str], name: str, amount: int) -> None:
    counter[name] -= amount
    if not counter[name]:
        del counter[name]
