"""The threads that requests to a Docker engine block, apart by purpose, with each tenant's turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandbox.engines.background import over
from sandbox.fair_semaphore import FairSemaphore

THREADS = 8
# A stream of a whole workspace takes as long as its reader or writer does. One tenant never has all of them.
_STREAMS, _STREAMS_OF_ONE = 3, 2
_STREAMS_WAITING_LIMIT = 64
# An engine removes volumes one after the other, and makes none meanwhile: more at once would only queue there.
_REMOVALS = 1
# Programs that empty volumes run apart from removals. One tenant's take one place at most.
_EMPTIERS = 2

_Value = TypeVar("_Value")


class RequestThreads:
    """Thread pools of one engine's requests."""

    def __init__(self) -> None:
        self._requests = _pool(THREADS, "")
        # A ping does not wait behind other requests, of which an engine may have many.
        self._pings = _pool(1, "-ping")
        self._streams = _pool(_STREAMS, "-stream")
        self._removals = _pool(_REMOVALS, "-removal")
        self._emptiers = _pool(_EMPTIERS, "-emptying")
        self.streams = FairSemaphore(
            _STREAMS,
            _STREAMS_WAITING_LIMIT,
            of_one=_STREAMS_OF_ONE,
            what="workspaces of this tenant wait to be saved or replaced",
        )
        """A caller of begin_stream() has a turn of its tenant here."""
        self._removal_turns = FairSemaphore(_REMOVALS)
        self._emptier_turns = FairSemaphore(_EMPTIERS, of_one=1)

    async def run(self, work: Callable[[], _Value]) -> _Value:
        """Run work that blocks for a request or so."""
        return await _begin(self._requests, work)

    async def ping(self, work: Callable[[], _Value]) -> _Value:
        """Run a ping, behind no other request."""
        return await _begin(self._pings, work)

    def begin_stream(self, work: Callable[[], _Value]) -> asyncio.Future[_Value]:
        """Run work that reads or writes a stream, in a turn of `streams`."""
        return _begin(self._streams, work)

    async def remove(self, work: Callable[[], _Value], *, tenant: str) -> _Value:
        """Remove a volume in the tenant's turn, which lasts until the work is done, even if the caller is cancelled."""
        async with self._removal_turns.turn(tenant):
            return await to_the_end(_begin(self._removals, work))

    async def empty(self, work: Callable[[], None], *, tenant: str) -> None:
        """Run a program that empties a volume, in the tenant's turn; no removal waits for it."""
        async with self._emptier_turns.turn(tenant):
            await to_the_end(_begin(self._emptiers, work))

    def close(self) -> None:
        """Take no more work; what is under way is not waited for."""
        for pool in (self._requests, self._streams, self._removals, self._emptiers, self._pings):
            pool.shutdown(wait=False)


async def to_the_end(work: asyncio.Future[_Value]) -> _Value:
    """Return the result of work in a thread; a cancelled caller waits for its end, too."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await over(work)
        raise


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=f"airlock-docker{name}")


def _begin(pool: ThreadPoolExecutor, work: Callable[[], _Value]) -> asyncio.Future[_Value]:
    return asyncio.get_running_loop().run_in_executor(pool, work)
