"""The threads that read the database, shared fairly: a tenant's slow reads hold up its own, and nobody else's.

A tenant has at most a share of the threads at once, and so have operators together. All callers together leave one of
them to what belongs to no call, a look in the background, which waits for no share. Who calls is asked for in a thread
of its own, behind nothing that tenants ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.storage.connecting import READERS
from gateway.support.current_tenant import CURRENT_TENANT

# How many reads of one tenant there may be at once.
_SHARE = READERS // 2
# How many reads of all calls there may be at once.
_OF_CALLS = READERS - 1
T = TypeVar("T")


class Readers:
    """The threads; call `shut_down` in a thread that may wait for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._foremost = ThreadPoolExecutor(1, thread_name_prefix="database-foremost")
        self._of_calls = asyncio.Semaphore(_OF_CALLS)
        # There as long as somebody reads or waits.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, read: Callable[[], T], *, foremost: bool = False) -> T:
        """Return what `read` returns, called in a thread: soon if it is `foremost`, else in the caller's turn."""
        if foremost:
            return await asyncio.wrap_future(self._foremost.submit(read))
        whose = CURRENT_TENANT.get()
        if whose is None:
            return await asyncio.wrap_future(self._threads.submit(read))
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = asyncio.Semaphore(_SHARE)
        # First its own share: who waits for that keeps nobody else from a thread.
        with contextlib.ExitStack() as places:
            for place in (share, self._of_calls):
                await place.acquire()
                places.callback(place.release)
            reading = self._threads.submit(read)
            try:
                return await asyncio.wrap_future(reading)
            finally:
                # A caller that went away has its thread at work still, and its places are taken as long as that is so.
                if not reading.done():
                    reading.add_done_callback(_closing(places.pop_all(), asyncio.get_running_loop()))

    def shut_down(self) -> None:
        """Wait for what is being read, and end the threads."""
        self._threads.shutdown()
        self._foremost.shutdown()


def _closing(places: contextlib.ExitStack, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
    def done(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(places.close)

    return done
