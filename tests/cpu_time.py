"""What work costs in processor time, beside other work that a slow or busy machine slows down as much."""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 5


def cpu_s(work: Callable[[], object]) -> float:
    """Return the processor time of one call, in seconds, of this thread alone."""
    started_s = time.thread_time()
    work()
    return time.thread_time() - started_s


def costs_at_most(times: float, work: Callable[[], object], beside: Callable[[], object]) -> bool:
    """Return whether `work` costs at most so many times as much as `beside`, which must take some milliseconds.

    How fast the machine is changes within milliseconds, so both are measured in each of a few tries, and one that is
    within the bound is enough: what is too slow is so in every one.
    """
    return any(cpu_s(work) <= times * cpu_s(beside) for _ in range(_TRIES))
