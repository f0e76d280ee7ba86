"""CPU-bound work on tenants' data, done in threads, off the event loop, in fair turns.

A tenant has one turn at a time, so another tenant waits for one turn at most. Threads share the interpreter: the server
sets a short switch interval so that the event loop gets its time. A turn cannot be interrupted: split large work into
turns of some ten milliseconds.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from agent.cancellation import to_the_end
from sandbox.fair_semaphore import FairSemaphore

# Two, so that one tenant's turn does not delay another's.
_PLACES = 2
T = TypeVar("T")


class Work(Protocol):
    """Calls a function with arguments in a turn of one tenant and returns its result."""

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T: ...


class HeavyWork:
    """The threads and turns of one process; the threads start with the first turn."""

    def __init__(self, places: int = _PLACES) -> None:
        self._turns = FairSemaphore(places, of_one=1)
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="heavy-work")

    def of(self, tenant: str) -> Work:
        return partial(self._run, tenant)

    async def _run(self, tenant: str, function: Callable[..., T], /, *args: Any) -> T:
        async with self._turns.turn(tenant):
            # To the end: a caller that leaves does not free the thread, so the tenant keeps its turn.
            return await to_the_end(self._call(function, args))

    async def _call(self, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        return await asyncio.wrap_future(self._threads.submit(function, *args))

    def close(self) -> None:
        """End the threads; work in progress completes."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def at_once(function: Callable[..., T], /, *args: Any) -> T:
    """Do the work at once, in the caller's task: for tests, and where no other tenant could wait."""
    return function(*args)
