"""Keeps the workspace within its limit where the engine's disk has no quotas, which few have.

While tool processes run, the disk's free space is read several times a second, which is cheap. Any decrease may have
been this sandbox's: if it could exceed the limit, the daemon pauses all tool processes and counts the workspace,
including removed files that processes or the daemon have open. Within the limit they are resumed. Over it they are
killed, and their calls report it. Commands may then still run to remove files, and are killed if they take more than
there was; far over the limit none is started, and only file calls can free space. A separate task counts kernel objects
(kernel.py), also during a count, and kills tool processes over those limits.

Processes that cannot be paused, because they resume each other, are killed as well. No program starts before the
workspace was counted once: a new daemon does not know what the previous one allowed, and would allow more each time.
Calls that hide something from a count (processes that cannot be inspected, files in flight between processes) are
killed once the disk has shrunk by what the workspace may still use, and directories that cannot be counted are charged
with all of it. So the limit can be exceeded by what is written between two looks, INTERVAL_LEAST_S near the limit; by
_FAR_LEAST more if others write to the disk as well, because a workspace within its limit is not paused all the time.
Tool code cannot allocate disk faster than it writes (tool_filter.py). Disk that others fill does not matter until less
than the reserve is free, of bytes or files: then nothing may grow, and after something did only file calls can free
space. The growth that each sandbox is allowed then could add up: so below half of the reserve no program starts at all.
The numbers, and the decisions from them, are in disk_ledger.py.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sandbox.daemon.failures import Fault
from sandbox.daemon.limits.disk_ledger import DiskLedger, Free
from sandbox.daemon.limits.disk_use import BLOCK_BYTES, DiskUse, count_tree, count_unlinked, is_open_here, through
from sandbox.daemon.limits.kernel import KernelUse
from sandbox.daemon.paths import components, join
from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.call_tree import count_living
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

# The size of a new directory on most disks.
_DISK_BLOCK_BYTES = 4096
_SECOND_LOOK_S = 0.03
# A workspace is over its limit when so many counts in a row say so.
_LOOKS = 3
# A file that fits if no program hides anything is refused when that is in doubt for longer.
_DOUBTFUL_S = 0.5
# The interval between counts of sockets, terminals and open files.
_KERNEL_INTERVAL_S = 0.1

SHORT = "the host's disk has less than its reserve left, so nothing may grow"
SPENT = "the host's disk has less than half of its reserve left, so no program is started"
_DOUBT = "and more if programs that cannot be inspected or other file calls have written it"
HOST_DISK = (SHORT, SPENT)
"""Refusals for other reasons than the workspace's own limit."""


class DiskWatch:
    """Watches one workspace. Limits of 0 are no limits; without any it does nothing."""

    def __init__(self, spawner: Spawner, settings: Settings, kernel: KernelUse | None = None) -> None:
        self._spawner = spawner
        self._kernel = kernel
        self._top = settings.workspace
        self.ledger = DiskLedger(settings.workspace_bytes, settings.workspace_files, settings.disk_reserve_bytes)
        self._on = bool(settings.workspace_bytes or settings.workspace_files or settings.disk_reserve_bytes)
        self.counting = asyncio.Lock()
        self._pausing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        # Whether a program was about to start since the last check for live processes.
        self._begun = False
        # Locked while the leftovers of the last program are counted: they are allowed, and must not grow meanwhile.
        self._closing = asyncio.Lock()

    def begin(self) -> None:
        """Watch for as long as tool processes live. Called before a program is started."""
        self._begun = True
        if self._on and self._task is None:
            self.ledger.look(self._disk())
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def refuse_start(self, limit_s: float | None = None) -> str:
        """Return why no program may start now, "" if one may.

        TimeoutError if the workspace could not be counted within `limit_s`.
        """
        if not self._on:
            return ""
        async with asyncio.timeout(limit_s), self._closing:
            pass
        if not self.ledger.counted:
            await self._count_first(limit_s)
        if self.ledger.is_far():
            await self._count_still()
            if self.ledger.is_far():
                return self.ledger.full_message
        if self.ledger.is_spent(self._disk()):
            return SPENT
        free = self._disk()
        self.ledger.update_floor(free)
        if self.ledger.is_past_floor(free):
            await self._count_still()
        return SHORT if self.ledger.is_past_floor(free) else ""

    async def refuse_process(self, limit_s: float | None = None) -> None:
        """Raise NO_SPACE if no program may start now, and TimeoutError as refuse_start()."""
        why = await self.refuse_start(limit_s)
        if why:
            raise _no_space(why)

    async def admit_parents(self, path: str) -> bool:
        """Return whether the missing directories above a path fit, and count them."""
        if not self._concerns(path) or os.path.isdir(os.path.dirname(path)):  # noqa: ASYNC240
            return True
        try:
            await self.admit_directory(os.path.dirname(path))
        except Fault:
            return False
        return True

    async def admit_directory(self, path: str) -> None:
        """Count a directory and its missing parents; NO_SPACE if they do not fit."""
        depth = len(components(path))
        await self.admit(path, depth * _DISK_BLOCK_BYTES, depth)

    def gives_back(self, old: os.stat_result | None, size_bytes: int) -> bool:
        """Return whether replacing a file frees as much as the new bytes take, so that they fit over the limit too."""
        if not self._on:
            return False
        if self.ledger.counted and self.ledger.fits(size_bytes, 1) and not self.ledger.is_short(self._disk()):
            return False  # it fits anyway, which is cheaper to check
        return (
            old is not None
            and old.st_nlink == 1
            and old.st_blocks * BLOCK_BYTES >= size_bytes
            and not is_open_here(old)
            and not self.ledger.is_spent(self._disk())
        )

    @asynccontextmanager
    async def writing(self, path: str, size_bytes: int) -> AsyncIterator[None]:
        """Count what a child writes to a path meanwhile, unseen by counts; NO_SPACE if it does not fit."""
        await self.admit(path, size_bytes)
        if not self._concerns(path):
            yield
            return
        self.ledger.hide(size_bytes)
        try:
            yield
        finally:
            self.ledger.hide(-size_bytes)

    async def admit(self, path: str, size_bytes: int, files: int = 1) -> None:
        """Count what a file call is about to write to a path; NO_SPACE if it does not fit."""
        if not self._concerns(path):
            return
        size_bytes = -(-size_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES  # as the next count sees it
        if not self.ledger.counted:
            await self._count_first()
        if not await self._fits(size_bytes, files):
            doubt = f" ({_DOUBT})" if self.ledger.fits_counted(size_bytes, files) else ""
            raise _no_space(self.ledger.full_message + doubt)
        free_bytes, free_files = self._disk()
        if self.ledger.is_short((free_bytes - size_bytes, free_files - files)):
            raise _no_space(SHORT)
        self.ledger.expect(size_bytes, files)

    async def _fits(self, size_bytes: int, files: int) -> bool:
        """Return whether so much more fits, by a count of now unless it is clear without one."""
        until_s = self.ledger.clock() + _DOUBTFUL_S
        while not self.ledger.fits(size_bytes, files):
            await self._count_still()
            if self.ledger.fits(size_bytes, files):
                break
            if not self.ledger.fits_counted(size_bytes, files) or self.ledger.clock() >= until_s:
                return False
            # A process that is dying cannot be inspected, and may have whatever the disk shrank by.
            await asyncio.sleep(_SECOND_LOOK_S)
        return True

    def _concerns(self, path: str) -> bool:
        # File calls follow no links, so the path is where it is written.
        return self._on and join(components(path)).startswith(f"{self._top}/")

    async def _watch(self) -> None:
        kernel = asyncio.get_running_loop().create_task(self._watch_kernel())
        try:
            while self._begun:
                self._begun = False
                while await self._tool_processes_live():
                    with suppress(OSError):  # the next look may succeed
                        await self._look()
                    await asyncio.sleep(self.ledger.interval_s())
                # All writes of the last process are known; from here on the disk shrinks by others.
                self.ledger.look(self._disk())
                if not self._begun and self.ledger.may_be_past():
                    async with self._closing:
                        self.ledger.allow_current_use()
                        await self._count()
        finally:
            # Before the next await: a program that starts from here on needs a new watch.
            self._task = None
            self.ledger.look_away()
            kernel.cancel()
            await asyncio.wait([kernel])

    async def _watch_kernel(self) -> None:
        """Kill tool processes over the limits on kernel objects, also during a count of the workspace."""
        if self._kernel is None:
            return
        self._kernel.begin()
        while True:
            # Sleep first: most programs have ended by then.
            await asyncio.sleep(_KERNEL_INTERVAL_S)
            with suppress(OSError):  # the next look tries again
                if self._kernel.is_past():
                    self._spawner.mark_for_kernel()
                    await self._spawner.kill_everything()

    async def _tool_processes_live(self) -> bool:
        if self._spawner.live():
            return True
        calls: dict[int, int] = {}
        try:
            for _ in count_living(calls):
                await asyncio.sleep(0)
        except OSError:
            return True  # unknown: keep watching
        return bool(calls)

    async def _look(self) -> None:
        free = self._disk()
        self.ledger.look(free)
        self.ledger.update_floor(free)
        if self.ledger.is_count_due(free) and (self.ledger.may_be_past() or not await self._count_in_background()):
            await self._count_paused(free)
        elif self.ledger.is_past(self._disk()):
            await self._end_everything()

    async def _count_paused(self, free: Free) -> None:
        """Count while tool processes are paused, as they would write on meanwhile; kill them if over the limit."""
        ended = False
        async with self._pausing:
            try:
                if not await self._pauses() or await self._counts_past(free):
                    ended = True
                    await self._end_everything()
            finally:
                ran = await self._spawner.resume()
        # A process that ran during the count may have moved files to where was counted already.
        if ran and not ended:
            await self._end_everything()

    async def _count_in_background(self) -> bool:
        """Count while tool code runs, and look meanwhile; return False as soon as the limit might be exceeded."""
        count = self._background = asyncio.get_running_loop().create_task(self._count(running=True))
        while not (await asyncio.wait([count], timeout=self.ledger.interval_s()))[0]:
            self.ledger.look(self._disk())
            if self.ledger.may_be_past():
                count.add_done_callback(lambda done: done.cancelled() or done.exception())
                return False
        count.result()
        return True

    async def _pauses(self) -> bool:
        try:
            await self._spawner.pause_everything()
        except OSError:
            return False
        return True

    async def _count_still(self) -> None:
        """Count for a file call or a start, with running tool processes paused, as they could hide files meanwhile."""
        if self._task is None:
            await self._count()
            return
        asked_s = self.ledger.clock()
        async with self._pausing:
            if self.ledger.counted_from_s >= asked_s:
                return  # another caller counted meanwhile
            try:
                await self._count(running=not await self._pauses())
            finally:
                ran = await self._spawner.resume()
        if ran:
            await self._end_everything()

    async def _counts_past(self, free: Free) -> bool:
        # A count may be too high for a moment: on ext4, 65.5 MiB were seen for a file of 63 that had just been written.
        for _ in range(_LOOKS):
            await self._count()
            if not self.ledger.is_past(free):
                return False
            await asyncio.sleep(_SECOND_LOOK_S)
        return True

    async def _count_first(self, limit_s: float | None = None) -> None:
        """Count a workspace for the first time; TimeoutError if that takes longer."""
        # The count continues without a caller: a large workspace on a slow disk would never be counted otherwise.
        first = self._first = self._first or asyncio.get_running_loop().create_task(self._count())
        done, _ = await asyncio.wait([first], timeout=limit_s)
        if not done:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._first = None
        first.result()

    async def _count(self, *, running: bool = False) -> None:
        """Count the workspace and removed files; `running` says that tool code runs meanwhile."""
        async with self.counting:
            shrunk, suspected = self.ledger.begin_count(), self.ledger.is_suspected()
            use, unlinked = DiskUse(), await self._count_unlinked()
            await through(count_tree(self._top, use))
            use.size_bytes += unlinked.size_bytes
            use.files += unlinked.files
            # When hardly anything is left, no call may keep files that could have more than is visible.
            spent = self.ledger.is_spent(self._disk())
            hiding = unlinked.hiding | unlinked.keeping if spent else unlinked.hiding
            for call in hiding if suspected else ():
                self._spawner.mark_for_disk(call)
                with suppress(OSError):  # the next count finds it again
                    await self._spawner.kill_call(call)
            # Calls that hide and were not killed may have more than was seen.
            self.ledger.take_count(use, shrunk, running=running or bool(unlinked.hiding and not suspected))

    async def _count_unlinked(self) -> DiskUse:
        use = DiskUse()
        await through(count_unlinked(self._top, use))
        if use.hiding:
            # A pending child cannot be inspected either, so look again.
            await asyncio.sleep(_SECOND_LOOK_S)
            first, use = use.hiding, DiskUse()
            await through(count_unlinked(self._top, use))
            use.hiding &= first
        return use

    async def _end_everything(self) -> None:
        host = self.ledger.is_short(self._disk()) and not self.ledger.is_past_own()
        self._spawner.mark_for_disk(host=host)
        await self._spawner.kill_everything()
        self.ledger.allow_current_use()
        await self._count()
        self.ledger.lower_floor()

    def _disk(self) -> Free:
        """Return the free bytes and inodes of the workspace's disk; some file systems have no inodes."""
        try:
            state = os.statvfs(self._top)
        except OSError:
            return self.ledger.free or (2**62, 2**62)
        return state.f_bavail * state.f_frsize, state.f_favail if state.f_files else 2**62


def _no_space(why: str) -> Fault:
    return Fault(wire.FAILURE_KIND_NO_SPACE, f"{why}: remove files you no longer need", errno.EDQUOT)
