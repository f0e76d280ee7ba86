"""What keeps the workspace within its limit where the engine's disk has no quotas, which few have.

While anything of the tool user runs, the disk's free space is looked at several times a second, which costs next to
nothing. Whatever it shrank by may have been this sandbox: when that might pass the limit everything of the tool user is
stopped, and the workspace counted, and with it what is held without a name, by processes or by the daemon for a caller.
What is within its limit goes on. Past it everything is killed, and the calls are told. A command may run then to remove
files, and is ended when it takes more than there was; far past the limit none is started, and only the file calls can
make room. A task of its own has kernel objects counted (kernel_use.py), also while the workspace is counted, and past
their limits everything is killed as well.

What cannot be stopped, because its processes have each other go on, is killed as well. No program is started before the
workspace was counted once: a daemon that is new does not know what the one before it allowed, and would allow more each
time. Calls that hide something from being counted (processes that let nobody look into them, files under way between
processes) are ended once the disk has shrunk by what the workspace has room for, and directories that cannot be counted
are charged with all of that. So a limit can be passed by what is written between two looks, INTERVAL_LEAST_S near the
limit; by _FAR_LEAST_BYTES more where others write to the disk as well, for what is within its limit is not stopped all
the time. Tool code cannot take disk faster than it writes (tool_filter.py). Disk that others fill is of no concern here
until less than the reserve is free, of bytes or of files: then nothing may grow, and after something did only file
calls can make room. What is let be of growth, for each sandbox anew, might add up: so below half of the reserve no
program is started at all. The numbers, and what follows from them, are disk_ledger.py's.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sandbox.daemon.failures import Fault
from sandbox.daemon.limits.disk_ledger import DiskLedger, Free
from sandbox.daemon.limits.disk_reading import through
from sandbox.daemon.limits.disk_use import BLOCK_BYTES, DiskUse, count_tree, count_unlinked, is_open_here
from sandbox.daemon.limits.kernel_use import KernelUse
from sandbox.daemon.paths import components, join
from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.call_tree import count_living
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

# What a new directory takes of most disks.
_DIRECTORY_BYTES = 4096
_SECOND_LOOK_S = 0.03
# Between two looks at sockets, terminals and open files.
_KERNEL_INTERVAL_S = 0.1

SHORT = "the host's disk has less than its reserve left, so nothing may grow"
SPENT = "the host's disk has less than half of its reserve left, so no program is started"
HOST_DISK = (SHORT, SPENT)
"""Refusals that are not for the workspace's own limit."""


class DiskWatch:
    """Watches one workspace. Limits of 0 are none; without any it does nothing."""

    def __init__(self, spawner: Spawner, settings: Settings, kernel: KernelUse | None = None) -> None:
        self._spawner = spawner
        self._kernel = kernel
        self._top = settings.workspace
        self._ledger = DiskLedger(settings.workspace_bytes, settings.workspace_files, settings.disk_reserve_bytes)
        self._on = bool(settings.workspace_bytes or settings.workspace_files or settings.disk_reserve_bytes)
        self.counting = asyncio.Lock()
        self._holding = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Task[None] | None = None
        self._at_ease: asyncio.Task[None] | None = None
        # Whether a program was to start since the last look at whether any lives.
        self._begun = False
        # Held while what the last program left is counted: it is allowed, and nobody is to add to it meanwhile.
        self._closing = asyncio.Lock()

    @property
    def used(self) -> tuple[int, int]:
        """The bytes and the files of the workspace as they were last counted."""
        return self._ledger.used

    def begin(self) -> None:
        """Look from now on, for as long as anything of the tool user lives. Called before a program is started."""
        self._begun = True
        if self._on and self._task is None:
            self._ledger.look(self._disk())
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def refuse_start(self, limit_s: float | None = None) -> str:
        """Return why no program may be started now, "" where one may.

        The workspace is far past its limit, or grew while the disk is short. TimeoutError when it could not be counted
        within `limit_s`.
        """
        if not self._on:
            return ""
        async with asyncio.timeout(limit_s), self._closing:
            pass
        if not self._ledger.counted:
            await self._count_first(limit_s)
        if self._ledger.is_far():
            await self._count_still()
            if self._ledger.is_far():
                return self._ledger.said
        if self._ledger.is_spent(self._disk()):
            return SPENT
        if await self._grew_while_short():
            return SHORT
        return ""

    async def refuse_process(self, limit_s: float | None = None) -> None:
        """Raise NO_SPACE where no program may be started now, and TimeoutError as refuse_start()."""
        why = await self.refuse_start(limit_s)
        if why:
            raise _no_space(why)

    async def admit_parents(self, path: str) -> bool:
        """Return whether the directories above a path may be made; counts them in where there is something to make."""
        if not self._concerns(path) or _is_directory(os.path.dirname(path)):
            return True
        try:
            await self.admit_directory(os.path.dirname(path))
        except Fault:
            return False
        return True

    async def admit_directory(self, path: str) -> None:
        """Count in a directory and those above it, which may be missing as well; NO_SPACE where they do not fit."""
        depth = len(components(path))
        await self.admit(path, depth * _DIRECTORY_BYTES, depth)

    def gives_back(self, old: os.stat_result | None, size_bytes: int) -> bool:
        """Return whether a file that is replaced gives back what so many bytes take: they fit past the limit, too."""
        if not self._on:
            return False
        if self._ledger.counted and self._ledger.fits(size_bytes, 1) and not self._ledger.is_short(self._disk()):
            return False  # there is room for it all the same, which is found out sooner
        return (
            old is not None
            and old.st_nlink == 1
            and old.st_blocks * BLOCK_BYTES >= size_bytes
            and not is_open_here(old)
            and not self._ledger.is_spent(self._disk())
        )

    @asynccontextmanager
    async def writing(self, path: str, size_bytes: int) -> AsyncIterator[None]:
        """Count in what a child writes to a path meanwhile, which no count sees; NO_SPACE where it does not fit."""
        await self.admit(path, size_bytes)
        if not self._concerns(path):
            yield
            return
        self._ledger.hide(size_bytes)
        try:
            yield
        finally:
            self._ledger.show(size_bytes)

    async def admit(self, path: str, size_bytes: int, files: int = 1) -> None:
        """Count in what a file call is about to write to a path; NO_SPACE where it does not fit."""
        if not self._concerns(path):
            return
        if not self._ledger.counted:
            await self._count_first()
        if not self._ledger.fits(size_bytes, files):
            await self._count_still()
            if not self._ledger.fits(size_bytes, files):
                raise _no_space(self._ledger.said)
        free_bytes, free_files = self._disk()
        if self._ledger.is_short((free_bytes - size_bytes, free_files - files)):
            raise _no_space(SHORT)
        self._ledger.expect(size_bytes, files)

    def _concerns(self, path: str) -> bool:
        # No file call follows a link, so it is written where the path says.
        return self._on and join(components(path)).startswith(f"{self._top}/")

    async def _watch(self) -> None:
        kernel = asyncio.get_running_loop().create_task(self._watch_kernel())
        try:
            while self._begun:
                self._begun = False
                while await self._anybody_lives():
                    with suppress(OSError):  # the next look may find what it needs
                        await self._look()
                    await asyncio.sleep(self._ledger.interval_s())
                # What the last one wrote is known now; what the disk shrinks by from here on is others'.
                self._ledger.look(self._disk())
                if not self._begun and self._ledger.may_be_past():
                    async with self._closing:
                        self._ledger.allow_what_there_is()
                        await self._count()
        finally:
            # Before anything is awaited: a program that starts from here on needs a new watch.
            self._task = None
            self._ledger.look_away()
            kernel.cancel()
            await asyncio.wait([kernel])

    async def _watch_kernel(self) -> None:
        """Kill everything that is past the limits on kernel objects. A count of the workspace delays none of this."""
        if self._kernel is None:
            return
        self._kernel.begin()
        while True:
            # First, for most programs have ended by then.
            await asyncio.sleep(_KERNEL_INTERVAL_S)
            with suppress(OSError):  # the next look tries again
                if self._kernel.is_past():
                    self._spawner.mark_for_kernel()
                    await self._spawner.kill_everything()

    async def _anybody_lives(self) -> bool:
        if self._spawner.live():
            return True
        calls: dict[int, int] = {}
        try:
            for _ in count_living(calls):
                await asyncio.sleep(0)
        except OSError:
            return True  # not known: the watch must go on
        return bool(calls)

    async def _look(self) -> None:
        free = self._disk()
        self._ledger.look(free)
        self._ledger.forget_short(free)
        if self._ledger.is_to_be_counted(free) and (self._ledger.may_be_past() or not await self._counts_at_ease()):
            await self._look_still(free)
        elif self._ledger.is_past(self._disk()):
            await self._end_everything()

    async def _look_still(self, free: Free) -> None:
        """Count while everything is held, or it would write on for as long as that takes; end what is past."""
        ended = False
        async with self._holding:
            try:
                if not await self._holds() or await self._counts_past(free):
                    ended = True
                    await self._end_everything()
            finally:
                gone_on = await self._spawner.resume()
        # What ran while it was counted may have moved what it has to where that was counted already.
        if gone_on and not ended:
            await self._end_everything()

    async def _counts_at_ease(self) -> bool:
        """Count while tool code goes on, and look meanwhile; return False as soon as it might be past what it may."""
        count = self._at_ease = asyncio.get_running_loop().create_task(self._count(running=True))
        while not (await asyncio.wait([count], timeout=self._ledger.interval_s()))[0]:
            self._ledger.look(self._disk())
            if self._ledger.may_be_past():
                count.add_done_callback(lambda done: done.cancelled() or done.exception())
                return False
        count.result()
        return True

    async def _holds(self) -> bool:
        """Stop everything of the tool user; return whether it is."""
        try:
            await self._spawner.pause_everything()
        except OSError:
            return False
        return True

    async def _count_still(self) -> None:
        """Count for a file call or a start. What runs is held here, too, or it would hide what it has meanwhile."""
        if self._task is None:
            await self._count()
            return
        asked_s = self._ledger.clock_s
        async with self._holding:
            if self._ledger.counted_from_s >= asked_s:
                return  # by who held it before, and began later
            try:
                await self._count(running=not await self._holds())
            finally:
                gone_on = await self._spawner.resume()
        if gone_on:
            await self._end_everything()

    async def _counts_past(self, free: Free) -> bool:
        await self._count()
        return self._ledger.is_past(free)

    async def _count_first(self, limit_s: float | None = None) -> None:
        """Count what a workspace has that was not counted yet; TimeoutError when that takes longer.

        It goes on whether or not anybody waits: a large one on a slow disk would never be known otherwise.
        """
        first = self._first = self._first or asyncio.get_running_loop().create_task(self._count())
        done, _ = await asyncio.wait([first], timeout=limit_s)
        if not done:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._first = None
        first.result()

    async def _count(self, *, running: bool = False) -> None:
        """Count the workspace and what is held of it; `running` says that tool code goes on meanwhile."""
        async with self.counting:
            shrunk, suspected = self._ledger.begin_count(), self._ledger.is_suspected()
            use, held = DiskUse(), await self._counted_held()
            await through(count_tree(self._top, use))
            use.size_bytes += held.size_bytes
            use.files += held.files
            # When there is next to nothing left, nobody may hold what keeps more than can be seen.
            hiding = held.hiding | held.holding if self._ledger.is_spent(self._disk()) else held.hiding
            for call in hiding if suspected else ():
                self._spawner.mark_for_disk(call)
                with suppress(OSError):  # the next count finds it again, and what this one found is needed
                    await self._spawner.kill_call(call)
            # Those that are let be may have more than was seen.
            self._ledger.take_count(use, shrunk, running=running or bool(held.hiding and not suspected))

    async def _counted_held(self) -> DiskUse:
        held = DiskUse()
        await through(count_unlinked(self._top, held))
        if held.hiding:
            # On its way to its program a process lets nobody look into it either.
            await asyncio.sleep(_SECOND_LOOK_S)
            first, held = held.hiding, DiskUse()
            await through(count_unlinked(self._top, held))
            held.hiding &= first
        return held

    async def _end_everything(self) -> None:
        """Kill everything of the tool user; what it leaves behind is what the next program may have."""
        host = self._ledger.is_short(self._disk()) and not self._ledger.is_past_own()
        self._spawner.mark_for_disk(host=host)
        await self._spawner.kill_everything()
        self._ledger.allow_what_there_is()
        await self._count()
        self._ledger.lower_short()

    async def _grew_while_short(self) -> bool:
        free = self._disk()
        self._ledger.forget_short(free)
        if self._ledger.is_past_floor(free):
            await self._count_still()
        return self._ledger.is_past_floor(free)

    def _disk(self) -> Free:
        """Return the bytes and the inodes that are free on the workspace's disk, which may count no inodes."""
        try:
            state = os.statvfs(self._top)
        except OSError:
            return self._ledger.free or (2**62, 2**62)
        return state.f_bavail * state.f_frsize, state.f_favail if state.f_files else 2**62


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)


def _no_space(why: str) -> Fault:
    return Fault(wire.FAILURE_KIND_NO_SPACE, f"{why}; remove files you no longer need", errno.EDQUOT)
