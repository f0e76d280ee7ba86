"""The threads that read the database, shared fairly: a tenant's slow reads delay only its own.

A tenant has at most a share of the threads at a time, and so have operators together. Calls together leave one thread
to background reads, which need no share. Authentication reads in a thread of its own, so tenants' reads never delay it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.storage.connecting import READERS
from gateway.support.current_tenant import CURRENT_TENANT

# Concurrent reads of one tenant.
_SHARE = READERS // 2
# Concurrent reads of all calls together.
_OF_CALLS = READERS - 1
T = TypeVar("T")


class Readers:
    """The threads; call `shut_down` in a thread that may wait for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._foremost = ThreadPoolExecutor(1, thread_name_prefix="database-foremost")
        self._of_calls = asyncio.Semaphore(_OF_CALLS)
        # Exists while there are readers or waiters.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, read: Callable[[], T], *, foremost: bool = False) -> T:
        """Return the result of `read`, called in a thread: in its own if `foremost`, else in the tenant's turn."""
        if foremost:
            return await asyncio.wrap_future(self._foremost.submit(read))
        whose = CURRENT_TENANT.get()
        if whose is None:
            return await asyncio.wrap_future(self._threads.submit(read))
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = asyncio.Semaphore(_SHARE)
        # First the tenant's own share: who waits for that keeps no other tenant from a thread.
        with contextlib.ExitStack() as places:
            for place in (share, self._of_calls):
                await place.acquire()
                places.callback(place.release)
            reading = self._threads.submit(read)
            try:
                return await asyncio.wrap_future(reading)
            finally:
                # The thread still works for a cancelled caller, and its places stay taken until it is done.
                if not reading.done():
                    reading.add_done_callback(_closing(places.pop_all(), asyncio.get_running_loop()))

    def shut_down(self) -> None:
        self._threads.shutdown()
        self._foremost.shutdown()


def _closing(places: contextlib.ExitStack, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
    def done(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no reader waits
            loop.call_soon_threadsafe(places.close)

    return done
