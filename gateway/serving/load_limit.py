"""Limits how many calls may start at once, by how long work waits for a processor.

    lag         how late a timer of the event loop ends after all ready callbacks ran: the delay of each step of a call
    pressure    the share of time in which something on this machine waits for a processor (Linux PSI). It shows
                sandboxes that wait for each other, which the loop does not notice. Without PSI only the lag counts

While either is too high, the limit repeatedly drops to a tenth below the current load, down to `least`, which keeps all
processors busy: more calls would each take longer and none would finish sooner. While neither is and calls wait, it
grows by a quarter, up to `most`. It applies to calls that started a moment ago (admission.py): long ones, such as a
build or a program that sleeps, keep no other out.
"""

import asyncio
import contextlib
import contextvars
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from gateway.serving.fair_loop import call_last

_TICK_S = 0.1
# What a call of a dozen steps may lose in each.
_LAG_S = 0.02
_PRESSURE = 0.8
# The weight of the newest tick: a single pause, such as a garbage collection, does not count much.
_NEWEST = 0.15
_DOWN, _UP = 10, 4
_PSI = Path("/proc/pressure/cpu")
_PSI_TOTAL_US = re.compile(rb"^some .*total=(\d+)")
_PSI_BYTES = 256


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
        self._lag_s += _NEWEST * (max(0.0, lag_s) - self._lag_s)
        self._pressure += _NEWEST * (max(0.0, pressure) - self._pressure)
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
                found = _PSI_TOTAL_US.match(os.pread(psi.fileno(), _PSI_BYTES, 0))
            except OSError:  # a kernel with PSI switched off opens the file but does not read it
                found = None
            return int(found[1]) / 1_000_000 if found else 0.0

        yield read
