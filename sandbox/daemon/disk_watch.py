"""What keeps the workspace within its limit where the engine's disk has no quotas, which few have.

While anything of the tool user runs, the disk's free space is looked at several times a second, which costs next to
nothing. Whatever it shrank by may have been this sandbox: when that might pass the limit everything of the tool user is
stopped, and the workspace counted, and files that processes hold without a name with it. What is within its limit goes
on. Past it everything is killed, and the calls are told. A command may run then to remove files, and is ended when it
takes more than there was; far past the limit none is started, and only the file calls can make room.

What cannot be stopped, because its processes have each other go on, is killed as well. No program is started before the
workspace was counted once: a daemon that is new does not know what the one before it allowed, and would allow more each
time. Calls that hide something from being counted (processes that let nobody look into them, files under way between
processes) are ended once the disk has shrunk by what the workspace has room for, and directories that cannot be counted
are charged with all of that. So a limit can be passed by what is written between two looks, INTERVAL_LEAST_S near the
limit; by _FAR_LEAST_BYTES more where others write to the disk as well, for what is within its limit is not stopped all
the time. Tool code cannot take disk faster than it writes (tool_filter.py). Disk that others fill is of no concern here
until less than the reserve is free, of bytes or of files: then nothing may grow, and after something did only file
calls can make room. What is let be of growth, for each sandbox anew, might add up: so below half of the reserve no
program is started at all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator

from sandbox.daemon.call_tree import count_living
from sandbox.daemon.disk_use import DiskUse, count_held, count_tree
from sandbox.daemon.failures import Fault
from sandbox.daemon.paths import components, join
from sandbox.daemon.settings import Settings
from sandbox.daemon.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

_MIB = 1024 * 1024
INTERVAL_LEAST_S = 0.05
_INTERVAL_MOST_S = 0.25
# Faster than a sandbox writes: so long it takes to fill what is left.
_WRITTEN_PER_S = 2_000 * _MIB
# A workspace that is past its limit may be so much larger before it counts as having grown.
_SLACK_BYTES = _MIB
_SLACK_FILES = 100
# So far past the limit nothing is started: a quarter of it, and at least what one look may come too late.
_FAR_SHARE = 4
_FAR_LEAST_BYTES = 256 * _MIB
_FAR_LEAST_FILES = 50_000
# What a new directory takes of most disks.
_DIRECTORY_BYTES = 4096
# Growth that is let be when the disk is short for all.
_SHORT_SLACK_BYTES = 16 * _MIB
_SHORT_SLACK_FILES = 1_000
# Of what a disk has of inodes, this is its reserve: a host without any is as stuck as one without a byte.
_RESERVE_FILES = 50_000
# Between two counts passes so many times what the last one took, unless the disk has shrunk by too much for that.
_PAUSE = 9
# Others that free space hide what is written here. So it is counted now and then also when nothing seems to be wrong.
_AT_EASE = 100
_AT_EASE_LEAST_S = 5.0

_SECOND_LOOK_S = 0.03

FULL = "the workspace holds {size:,} bytes in {files:,} files, and {limit:,} bytes in {most:,} files is its limit"
SHORT = "the host's disk has less than its reserve left, so nothing may grow"
SPENT = "the host's disk has less than half of its reserve left, so no program is started"

Free = tuple[int, int]
"""Bytes and files."""


class DiskWatch:
    """Watches one workspace. Limits of 0 are none; without any it does nothing."""

    def __init__(self, spawner: Spawner, settings: Settings) -> None:
        self._spawner = spawner
        self._top = settings.workspace
        self._limit_bytes = settings.workspace_bytes or 2**62
        self._limit_files = settings.workspace_files or 2**62
        self._reserve_bytes = settings.disk_reserve_bytes
        self._on = bool(settings.workspace_bytes or settings.workspace_files or settings.disk_reserve_bytes)
        self._counting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        # As it was counted last; None before the first time.
        self._used: DiskUse | None = None
        # By how much the disk has shrunk since, and what was free at the last look; None while nobody looks.
        self._shrunk_bytes = 0.0
        self._shrunk_files = 0
        self._free: Free | None = None
        # What a workspace past its limit may have, so that something can be done about it.
        self._allowed_bytes: float = self._limit_bytes
        self._allowed_files = self._limit_files
        # What it had when the disk began to be short; less when it had less after it was ended for growing.
        self._short: tuple[float, int] | None = None
        self._first: asyncio.Task[None] | None = None
        self._counted_s = time.monotonic()
        self._took_s = 0.0

    @property
    def used(self) -> tuple[int, int]:
        """The bytes and the files of the workspace as they were last counted."""
        return (0, 0) if self._used is None else (int(self._used.size_bytes), self._used.files)

    def begin(self) -> None:
        """Look from now on, for as long as anything of the tool user lives. Called before a program is started."""
        if self._on and self._task is None:
            self._free = self._disk()
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def refuse_start(self, limit_s: float | None = None) -> str:
        """Return why no program may be started now, "" where one may.

        The workspace is far past its limit, or grew while the disk is short. TimeoutError when it could not be counted
        within `limit_s`.
        """
        if not self._on:
            return ""
        if self._used is None:
            await self._count_first(limit_s)
        if self._is_far():
            await self._count()
            if self._is_far():
                return self._said()
        if self._is_spent(self._disk()):
            return SPENT
        if self._short is not None and await self._grew_while_short():
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

    def wrote(self, path: str, size_bytes: int) -> None:
        """Count in what a file call may have written, that could not be told before."""
        if self._concerns(path):
            self._shrunk_bytes += size_bytes

    async def admit(self, path: str, size_bytes: int, files: int = 1) -> None:
        """Count in what a file call is about to write to a path; NO_SPACE where it does not fit."""
        if not self._concerns(path):
            return
        if self._used is None:
            await self._count_first()
        if not self._fits(size_bytes, files):
            await self._count()
            if not self._fits(size_bytes, files):
                raise _no_space(self._said())
        free_bytes, free_files = self._disk()
        if self._is_short((free_bytes - size_bytes, free_files - files)):
            raise _no_space(SHORT)
        self._shrunk_bytes += size_bytes
        self._shrunk_files += files

    def _concerns(self, path: str) -> bool:
        # No file call follows a link, so it is written where the path says.
        return self._on and join(components(path)).startswith(f"{self._top}/")

    def _fits(self, size_bytes: int, files: int) -> bool:
        return (
            self._least_bytes() + self._shrunk_bytes + size_bytes <= self._limit_bytes
            and self._least_files() + self._shrunk_files + files <= self._limit_files
        )

    async def _watch(self) -> None:
        try:
            while await self._anybody_lives():
                await self._look()
                await asyncio.sleep(self._interval_s())
            # What the last one wrote is known now; what the disk shrinks by from here on is others'.
            self._measure_shrinking()
            if self._may_be_past():
                self._allowed_bytes = self._allowed_files = 2**62
                await self._count()
        finally:
            self._task = None
            self._free = None

    async def _anybody_lives(self) -> bool:
        if self._spawner.live():
            return True
        calls: dict[int, int] = {}
        for _ in count_living(calls):
            await asyncio.sleep(0)
        return bool(calls)

    async def _look(self) -> None:
        free = self._measure_shrinking()
        if not self._is_short(free):
            self._short = None
        if not self._is_to_be_counted(free):
            pass
        elif self._may_be_past():
            # Held meanwhile, or it would write on for as long as the counting takes.
            ended = False
            try:
                if not await self._holds() or await self._counts_past(free):
                    ended = True
                    await self._end_everything()
            finally:
                gone_on = await self._spawner.release()
            # What ran while it was counted may have moved what it has to where that was counted already.
            if gone_on and not ended:
                await self._end_everything()
            return
        else:
            await self._count(running=True)
        if self._is_past(free):
            await self._end_everything()

    async def _holds(self) -> bool:
        """Stop everything of the tool user; return whether it is."""
        try:
            await self._spawner.hold_everything()
        except OSError:
            return False
        return True

    async def _counts_past(self, free: Free) -> bool:
        await self._count()
        return self._is_past(free)

    def _measure_shrinking(self) -> Free:
        free = self._disk()
        before = self._free or free
        # Added up, so that what others free in between takes nothing from it.
        self._shrunk_bytes += max(before[0] - free[0], 0)
        self._shrunk_files += max(before[1] - free[1], 0)
        self._free = free
        return free

    def _is_to_be_counted(self, free: Free) -> bool:
        if self._used is None:
            return True
        since_s = time.monotonic() - self._counted_s
        pause_s = 0.0 if self._may_be_far() else self._took_s * _PAUSE
        if since_s < pause_s or not (self._shrunk_bytes or self._shrunk_files):
            return False
        if self._may_be_past():
            return True
        if self._is_short(free) and (self._short is None or self._may_be_past_floor(free)):
            return True
        return since_s >= max(self._took_s * _AT_EASE, _AT_EASE_LEAST_S)

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
        """Count the workspace and what is held of it, and begin anew to measure what the disk shrinks by.

        What is `running` may move files to where was counted already, so less than was known is not believed then.
        """
        async with self._counting:
            began_s = time.monotonic()
            shrunk_bytes, shrunk_files = self._shrunk_bytes, self._shrunk_files
            suspected = self._may_be_past() or (self._free is not None and self._is_short(self._free))
            use, held = DiskUse(), await self._counted_held()
            await _through(count_tree(self._top, use))
            use.size_bytes += held.size_bytes
            use.files += held.files
            if self._used is None:
                self._allowed_bytes = self._allowed_files = 2**62
            elif use.hidden:
                use.size_bytes = max(use.size_bytes, self._used.size_bytes + shrunk_bytes)
                use.files = max(use.files, self._used.files + shrunk_files)
            for call in held.hiding if suspected else ():
                self._spawner.mark_for_disk(call)
                await self._spawner.kill_call(call)
            if running and self._used is not None:
                most_bytes, most_files = self._used.size_bytes + shrunk_bytes, self._used.files + shrunk_files
                use.size_bytes = max(use.size_bytes, self._used.size_bytes)
                use.files = max(use.files, self._used.files)
                shrunk_bytes -= max(most_bytes - use.size_bytes, 0)
                shrunk_files -= max(most_files - use.files, 0)
            self._used = use
            self._shrunk_bytes -= shrunk_bytes
            self._shrunk_files -= shrunk_files
            # What was past the limit may go back, and not come again.
            self._allowed_bytes = max(self._limit_bytes, min(self._allowed_bytes, use.size_bytes))
            self._allowed_files = max(self._limit_files, min(self._allowed_files, use.files))
            self._counted_s = time.monotonic()
            self._took_s = self._counted_s - began_s

    async def _counted_held(self) -> DiskUse:
        held = DiskUse()
        await _through(count_held(self._top, held))
        if held.hiding:
            # On its way to its program a process lets nobody look into it either.
            await asyncio.sleep(_SECOND_LOOK_S)
            first, held = held.hiding, DiskUse()
            await _through(count_held(self._top, held))
            held.hiding &= first
        return held

    async def _end_everything(self) -> None:
        """Kill everything of the tool user; what it leaves behind is what the next program may have."""
        self._spawner.mark_for_disk()
        await self._spawner.kill_everything()
        self._allowed_bytes = self._allowed_files = 2**62
        await self._count()
        if self._short is not None:
            # Never more, or each command could grow again.
            self._short = min(self._short[0], self._least_bytes()), min(self._short[1], self._least_files())

    def _is_past(self, free: Free) -> bool:
        """Return whether what was counted is more than there may be."""
        size_bytes = self._least_bytes()
        if size_bytes > self._allowed_bytes + _SLACK_BYTES or self._least_files() > self._allowed_files + _SLACK_FILES:
            return True
        if not self._is_short(free) or self._used is None:
            return False
        if self._short is None:
            self._short = size_bytes, self._least_files()
        return self._is_past_floor(free)

    async def _grew_while_short(self) -> bool:
        free = self._disk()
        if not self._is_short(free):
            self._short = None
        elif self._is_past_floor(free):
            await self._count()
        return self._is_past_floor(free)

    def _is_past_floor(self, free: Free) -> bool:
        return self._short is not None and self._grew(free, self._least_bytes(), self._least_files())

    def _may_be_past_floor(self, free: Free) -> bool:
        return self._short is not None and self._grew(
            free, self._least_bytes() + self._shrunk_bytes, self._least_files() + self._shrunk_files
        )

    def _grew(self, free: Free, size_bytes: float, files: int) -> bool:
        short_bytes, short_files = self._short or (2**62, 2**62)
        spent = self._is_spent(free)
        return size_bytes > short_bytes + (_SLACK_BYTES if spent else _SHORT_SLACK_BYTES) or files > short_files + (
            _SLACK_FILES if spent else _SHORT_SLACK_FILES
        )

    def _may_be_past(self) -> bool:
        return (
            self._least_bytes() + self._shrunk_bytes > self._allowed_bytes + _SLACK_BYTES
            or self._least_files() + self._shrunk_files > self._allowed_files + _SLACK_FILES
        )

    def _may_be_far(self) -> bool:
        return self._far(self._least_bytes() + self._shrunk_bytes, self._least_files() + self._shrunk_files)

    def _is_far(self) -> bool:
        return self._far(self._least_bytes(), self._least_files())

    def _far(self, size_bytes: float, files: int) -> bool:
        far_bytes = self._limit_bytes + max(self._limit_bytes // _FAR_SHARE, _FAR_LEAST_BYTES)
        far_files = self._limit_files + max(self._limit_files // _FAR_SHARE, _FAR_LEAST_FILES)
        return size_bytes > far_bytes or files > far_files

    def _is_short(self, free: Free) -> bool:
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes or free[1] < _RESERVE_FILES)

    def _is_spent(self, free: Free) -> bool:
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes // 2 or free[1] < _RESERVE_FILES // 2)

    def _least_bytes(self) -> float:
        return 0.0 if self._used is None else self._used.size_bytes

    def _least_files(self) -> int:
        return 0 if self._used is None else self._used.files

    def _interval_s(self) -> float:
        left_bytes = self._allowed_bytes - self._least_bytes() - self._shrunk_bytes
        if self._free is not None and self._reserve_bytes:
            left_bytes = min(left_bytes, self._free[0] - self._reserve_bytes)
        return min(max(left_bytes / _WRITTEN_PER_S, INTERVAL_LEAST_S), _INTERVAL_MOST_S)

    def _disk(self) -> Free:
        """Return the bytes and the inodes that are free on the workspace's disk, which may count no inodes."""
        try:
            state = os.statvfs(self._top)
        except OSError:
            return self._free or (2**62, 2**62)
        return state.f_bavail * state.f_frsize, state.f_favail if state.f_files else 2**62

    def _said(self) -> str:
        size_bytes, files = self.used
        return FULL.format(size=size_bytes, files=files, limit=self._limit_bytes, most=self._limit_files)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)


async def _through(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


def _no_space(why: str) -> Fault:
    return Fault(wire.FAILURE_KIND_NO_SPACE, f"{why}; remove files you no longer need", errno.EDQUOT)
