"""What a pooled sandbox is looked over for before a thread gets it: nothing runs in it, and no file is there."""

import asyncio
from collections.abc import Sequence

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.pooled_sandbox import PooledRefused
from sandbox.protocols import EntriesPage, ProcessList
from sandbox.usage import Health

# Every place that tool code can write to.
_EMPTY = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108


async def refuse_used(sandbox: ChannelSandbox, pids: int) -> None:
    """Raise PooledRefused for a sandbox in which something runs or lies; SandboxError when its daemon does not say.

    Nothing can have been in it before its claim, for a pooled sandbox has no owner and no network. So whatever is found
    there was not put there by any way that Airlock knows of, and is no reason to look closer: the pooled sandbox goes.
    `pids` is what settled() returned of it.
    """
    health, listed, pages = await _asked(sandbox)
    for _ in range(3):
        if health.pids > pids:  # what answers just now has processes, too
            health = await sandbox.health()
    if listed.processes or listed.strays:
        raise PooledRefused("a process runs in an unused pooled sandbox")
    if health.pids > pids or health.memory_kills or health.pids_refused:
        raise PooledRefused(f"{health.pids} processes and threads are in a pooled sandbox that had {pids}")
    for path, page in zip(_EMPTY, pages, strict=True):
        if page.entries:
            raise PooledRefused(f"{path} of an unused pooled sandbox is not empty")


async def settled(sandbox: ChannelSandbox) -> int:
    """Return how many processes and threads the daemon itself has, once it has done what refuse_used() asks of it.

    A process that starting left behind may take a while to end on a busy machine. Counted here, it would hide another
    one later, so the fewest must be seen five times, within a second.
    """
    await _asked(sandbox)
    seen: list[int] = []
    while len(seen) < 50 and seen.count(min(seen, default=0)) < 5:
        seen.append((await sandbox.health()).pids)
        await asyncio.sleep(0.02)
    return min(seen)


async def _asked(sandbox: ChannelSandbox) -> tuple[Health, ProcessList, Sequence[EntriesPage]]:
    pages = asyncio.gather(*(sandbox.files.ls(path, limit=1) for path in _EMPTY))
    return await asyncio.gather(sandbox.health(), sandbox.processes.list(), pages)
