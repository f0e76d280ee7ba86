"""The check of a pooled sandbox at its claim: that nothing was in it before.

Nothing can have been, for a pooled sandbox has no owner and no network. So whatever is found there was not put there
by any way that Airlock knows of, and is no reason to look closer: the pooled sandbox goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.pooled_sandbox import PooledRefused
from sandbox.filesystem import EntriesPage
from sandbox.health import Health
from sandbox.process import ProcessList

# Every place that tool code can write to.
_EMPTY = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108
_LOOKS = 3
# The fewest processes seen so often, and so far apart, are the daemon's own.
_ALIKE = 5
_SETTLING_LOOKS = 50
_SETTLING_S = 0.02


async def refuse_used(sandbox: ChannelSandbox, pids: int) -> None:
    """Raise PooledRefused for a sandbox in which something runs or lies; SandboxError when its daemon does not say.

    `pids` is what settled() returned of it.
    """
    health, listed, pages = await _asked(sandbox)
    for _ in range(_LOOKS):
        if health.pids > pids:  # what answers just now has processes, too
            health = await sandbox.health()
    if listed.processes or listed.strays:
        raise PooledRefused("something runs in a sandbox of the pool that nobody has used")
    if health.pids > pids or health.memory_kills or health.pids_refused:
        raise PooledRefused(f"{health.pids} processes and threads are in a sandbox of the pool that had {pids}")
    for path, page in zip(_EMPTY, pages, strict=True):
        if page.entries:
            raise PooledRefused(f"there is something in {path} of a sandbox of the pool that nobody has used")


async def settled(sandbox: ChannelSandbox) -> int:
    """Return how many processes and threads the daemon itself has, once it has done what refuse_used() asks of it.

    A process that starting left behind may take a while to end on a busy machine. Counted here, it would hide another
    one later, so the fewest must be seen several times.
    """
    await _asked(sandbox)
    seen: list[int] = []
    while len(seen) < _SETTLING_LOOKS and seen.count(min(seen, default=0)) < _ALIKE:
        seen.append((await sandbox.health()).pids)
        await asyncio.sleep(_SETTLING_S)
    return min(seen)


async def _asked(sandbox: ChannelSandbox) -> tuple[Health, ProcessList, Sequence[EntriesPage]]:
    pages = asyncio.gather(*(sandbox.files.ls(path, limit=1) for path in _EMPTY))
    return await asyncio.gather(sandbox.health(), sandbox.processes.list(), pages)
