"""Disk usage for callers, counted on request but only as often as is cheap.

The watch has numbers of its own (disk_ledger.py), of the last time it had a reason to count, and rather too large.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence

from sandbox.daemon.limits.disk_use import DiskUse, count_tree, count_unlinked

# A count is followed by a pause of so many times its duration.
_PAUSE = 9
# A longer count continues, for the next caller.
_WAIT_S = 1.0


class DiskReading:
    """Counts directories, with the lock `counting`. `unlinked` includes removed files that processes have open."""

    def __init__(
        self,
        tops: Sequence[str],
        counting: asyncio.Lock,
        *,
        unlinked: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tops = tops
        self._counting = counting
        self._unlinked = unlinked
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._found: Sequence[DiskUse | None] = [None] * len(tops)
        self._due_s = 0.0

    async def read(self) -> Sequence[DiskUse | None]:
        """Return the usage of each directory, possibly a little old; None if it is unknown."""
        if self._task is None and self._clock() >= self._due_s:
            self._task = asyncio.get_running_loop().create_task(self._count())
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_WAIT_S)
        return self._found

    async def _count(self) -> None:
        try:
            # A count may change a directory's mode temporarily, which must not happen twice at once.
            async with self._counting:
                began_s = self._clock()
                self._found = [await self._count_below(top) for top in self._tops]
                now_s = self._clock()
                self._due_s = now_s + (now_s - began_s) * _PAUSE
        finally:
            self._task = None

    async def _count_below(self, top: str) -> DiskUse | None:
        use = DiskUse()
        try:
            if self._unlinked:
                await through(count_unlinked(top, use))
            await through(count_tree(top, use))
        except OSError:
            return None
        return use


def mounted_use(top: str) -> DiskUse | None:
    """Return the usage of a whole file system; None if it does not report it.

    A count would find the same except on gVisor, whose tmpfs reports the full size for sparse files.
    """
    try:
        state = os.statvfs(top)
    except OSError:
        return None
    use = DiskUse()
    use.size_bytes = (state.f_blocks - state.f_bfree) * state.f_frsize
    use.files = state.f_files - state.f_ffree
    return use


async def through(steps: Iterator[None]) -> None:
    """Run the steps of a count, and other tasks in between."""
    for _ in steps:
        await asyncio.sleep(0)
