"""What files take of the disk, for who asks: counted when somebody asks, and no more often than costs little.

The watch has numbers of its own (disk_ledger.py): those are of a moment when there was a reason to count, and rather
too large than too small.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence

from sandbox.daemon.limits.disk_use import DiskUse, count_tree, count_unlinked

# Between two counts passes so many times what the last one took.
_PAUSE = 9
# A count that takes longer goes on, and is told to who asks next.
_PATIENCE_S = 1.0


class DiskReading:
    """Counts what is below directories; `counting` is held meanwhile.

    `held` has files count that tool processes hold without a name.
    """

    def __init__(
        self,
        tops: Sequence[str],
        counting: asyncio.Lock,
        *,
        held: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tops = tops
        self._counting = counting
        self._held = held
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._found: Sequence[DiskUse | None] = [None] * len(tops)
        self._due_s = 0.0

    async def read(self) -> Sequence[DiskUse | None]:
        """Return what is below each, as it is or was a little before; None for what is not known."""
        if self._task is None and self._clock() >= self._due_s:
            self._task = asyncio.get_running_loop().create_task(self._count())
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PATIENCE_S)
        return self._found

    async def _count(self) -> None:
        try:
            # Two counts at once would take each other's right to look into a directory that its owner may not read.
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
            if self._held:
                await through(count_unlinked(top, use))
            await through(count_tree(top, use))
        except OSError:
            return None
        return use


def mounted_use(top: str) -> DiskUse | None:
    """Return what is taken of a file system that is a directory's own; None where it does not say.

    A count would find as much, but for gVisor, whose tmpfs says of a file with holes that it takes its size.
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
    """Take the steps of a count, and let others have their turn in between."""
    for _ in steps:
        await asyncio.sleep(0)
