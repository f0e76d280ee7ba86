"""Limits how many requests are read at once: grpc buffers each, up to the size limit of a message.

The limit is by address or tenant and in all; more wait. A request must arrive in time, and sooner if others wait for
its place: a well-behaved one arrives with the start of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import DeadlineExceeded, Overloaded
from sandbox.fair_semaphore import FairSemaphore

TIMEOUT_S = 20.0
_TIMEOUT_WITH_OTHERS_S = 2.0
T = TypeVar("T")


class Reads:
    """Reads `each` requests at once of one address or tenant, `in_all` of all of them."""

    def __init__(self, each: int, in_all: int, timeout_s: float = TIMEOUT_S) -> None:
        self._each = each
        self._in_all = in_all
        self._timeout_s = timeout_s
        self._with_others_s = min(timeout_s / 2, _TIMEOUT_WITH_OTHERS_S)
        self._turns = FairSemaphore(in_all, of_one=each)
        self._waiting: Counter[str] = Counter()
        # The source of each request and when its reading began, as loop.time().
        self._reading: dict[asyncio.Task[object], tuple[str, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, source: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, in its turn and in time; raises Overloaded, DeadlineExceeded."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served in a task")
        async with contextlib.AsyncExitStack() as turn:
            await self._enter(turn, source)
            self._reading[task] = (source, asyncio.get_running_loop().time())
            self._set_timer()
            try:
                return await read()
            except asyncio.CancelledError:
                # If the peer disconnected too, the cancellation stands.
                if task in self._reading or task.uncancel():
                    raise
                raise DeadlineExceeded("the call's request did not arrive in time") from None
            finally:
                self._reading.pop(task, None)

    async def _enter(self, turn: contextlib.AsyncExitStack, source: str) -> None:
        self._waiting[source] += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn.enter_async_context(self._turns.turn(source))
        except TimeoutError:
            own = sum(reading == source for reading, _ in self._reading.values())
            which = "of this caller " if own >= self._each else ""
            raise Overloaded(f"too many requests {which}are still arriving: try again", 1.0) from None
        finally:
            self._waiting[source] -= 1
            if not self._waiting[source]:
                del self._waiting[source]

    def _set_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._with_others_s / 4, self._end_late_reads, context=contextvars.Context())

    def _end_late_reads(self) -> None:
        """Cancel reads that exceed their time, which is shorter if others wait for their place."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        full = len(self._reading) >= self._in_all
        for task, (source, began) in list(self._reading.items()):
            others_wait = self._waiting and (full or source in self._waiting)
            if began <= now - (self._with_others_s if others_wait else self._timeout_s):
                del self._reading[task]
                task.cancel()
        if self._reading:
            self._set_timer()
