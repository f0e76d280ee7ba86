"""The threads that requests to a Docker engine block, apart by purpose, with each tenant's turns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandbox.engines.background import over
from sandbox.fair_semaphore import FairSemaphore

THREADS = 8
_STREAMS_WAITING_LIMIT = 64
_WAITING_STREAMS = "workspaces of this tenant wait to be saved or replaced"

_Value = TypeVar("_Value")


class Lane:
    """The threads of one purpose, and a tenant's turns at them, of which it has `of_one` at once at most."""

    def __init__(self, purpose: str, threads: int, turns: FairSemaphore | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"airlock-docker{purpose}")
        self.turns = turns or FairSemaphore(threads)

    def begin(self, work: Callable[[], _Value]) -> asyncio.Future[_Value]:
        """Run work in a thread, in the caller's turn if it has one."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run(self, work: Callable[[], _Value], *, tenant: str) -> _Value:
        """Run work in the tenant's turn, which lasts until it is done, even if the caller is cancelled."""
        async with self.turns.turn(tenant):
            return await to_the_end(self.begin(work))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class RequestThreads:
    """The lanes of one engine's requests."""

    def __init__(self) -> None:
        self.requests = Lane("", THREADS)
        # A ping does not wait behind other requests, of which an engine may have many.
        self.pings = Lane("-ping", 1)
        # A stream of a whole workspace takes as long as its reader or writer does. One tenant never has all of them.
        self.streams = Lane("-stream", 3, FairSemaphore(3, _STREAMS_WAITING_LIMIT, of_one=2, what=_WAITING_STREAMS))
        # An engine removes volumes one after the other, and makes none meanwhile: more at once would only queue there.
        self.removals = Lane("-removal", 1)
        # Programs that empty volumes run apart from removals. One tenant's take one place at most.
        self.emptiers = Lane("-emptying", 2, FairSemaphore(2, of_one=1))

    def close(self) -> None:
        for lane in (self.requests, self.pings, self.streams, self.removals, self.emptiers):
            lane.close()


async def to_the_end(work: asyncio.Future[_Value]) -> _Value:
    """Return the result of work in a thread; a cancelled caller waits for its end, too."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await over(work)
        raise
