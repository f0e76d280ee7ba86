"""Calls of the client from any thread and any event loop, for frameworks that use several, or none.

A client belongs to one event loop. These calls run in a loop of their own, in a thread that lives as long as the
process, so a client that is used here is used here only.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_STARTING = threading.Lock()


async def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a call and await it here; cancelling the await cancels the call."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a call and block until it is over; an interrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    with _STARTING:
        return _loop_of(os.getpid())


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Return the loop of a process: a forked child has the cache of its parent, and none of its threads."""
    del process
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="airlock", daemon=True).start()
    return loop
