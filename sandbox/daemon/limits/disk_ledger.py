"""The numbers of a workspace's disk: what it was counted to take, what may have come since, and what follows from both.

Nothing here waits or looks at anything: the watch (disk_watch.py) tells what is free and what it counted, and asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sandbox.daemon.limits.disk_use import DiskUse

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
_ANY = 2**62

FULL = "the workspace holds {size:,} bytes in {files:,} files, and {limit:,} bytes in {most:,} files is its limit"

Free = tuple[int, int]
"""Bytes and files."""


class Shrunk:
    """By how much the disk had shrunk since the count before when another began, and when that was."""

    def __init__(self, size_bytes: float, files: int, began_s: float) -> None:
        self.size_bytes = size_bytes
        self.files = files
        self.began_s = began_s


class DiskLedger:
    """Keeps the numbers of one workspace. Limits of 0 are none."""

    def __init__(
        self, limit_bytes: int, limit_files: int, reserve_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_bytes = limit_bytes or _ANY
        self._limit_files = limit_files or _ANY
        self._reserve_bytes = reserve_bytes
        self._clock = clock
        # As it was counted last; None before the first time.
        self._used: DiskUse | None = None
        # By how much the disk has shrunk since, and what was free at the last look; None while nobody looks.
        self._shrunk_bytes = 0.0
        self._shrunk_files = 0
        self._free: Free | None = None
        # What is being written where no count sees it.
        self._unseen_bytes = 0
        # What a workspace past its limit may have, so that something can be done about it.
        self._allowed_bytes: float = self._limit_bytes
        self._allowed_files = self._limit_files
        # What it had when the disk began to be short; less when it had less after it was ended for growing.
        self._short: tuple[float, int] | None = None
        self._counted_s = clock()
        self._took_s = 0.0
        self.counted_from_s = float("-inf")
        """When the last count began, as clock_s tells the time."""

    @property
    def clock_s(self) -> float:
        """The clock."""
        return self._clock()

    @property
    def used(self) -> tuple[int, int]:
        """The bytes and the files of the workspace as they were last counted."""
        return (0, 0) if self._used is None else (int(self._used.size_bytes), self._used.files)

    @property
    def counted(self) -> bool:
        """Whether it was counted once."""
        return self._used is not None

    @property
    def free(self) -> Free | None:
        """What was free at the last look; None while nobody looks."""
        return self._free

    @property
    def said(self) -> str:
        """What the workspace holds, and what it may."""
        size_bytes, files = self.used
        return FULL.format(size=size_bytes, files=files, limit=self._limit_bytes, most=self._limit_files)

    def look(self, free: Free) -> None:
        """Note what is free now."""
        before = self._free or free
        # Added up, so that what others free in between takes nothing from it.
        self._shrunk_bytes += max(before[0] - free[0], 0)
        self._shrunk_files += max(before[1] - free[1], 0)
        self._free = free

    def look_away(self) -> None:
        """Have what the disk shrinks by until the next look be others'."""
        self._free = None

    def expect(self, size_bytes: int, files: int = 0) -> None:
        """Count in what is about to be written."""
        self._shrunk_bytes += size_bytes
        self._shrunk_files += files

    def hide(self, size_bytes: int) -> None:
        """Have what was expected stay counted in, whatever is counted meanwhile."""
        self._shrunk_bytes -= size_bytes
        self._unseen_bytes += size_bytes

    def show(self, size_bytes: int) -> None:
        """Have it be seen by the next count."""
        self._unseen_bytes -= size_bytes
        self._shrunk_bytes += size_bytes

    def begin_count(self) -> Shrunk:
        """Return what take_count() is to be told when the count is done."""
        return Shrunk(self._shrunk_bytes, self._shrunk_files, self._clock())

    def take_count(self, use: DiskUse, shrunk: Shrunk, *, running: bool = False) -> None:
        """Take what was counted, and begin anew to measure what the disk shrinks by.

        What is `running` may move files to where was counted already, so less than was known is not believed then.
        """
        shrunk_bytes, shrunk_files = shrunk.size_bytes, shrunk.files
        known = self._used
        if known is None:
            self.allow_what_there_is()
        elif use.hidden:
            use.size_bytes = max(use.size_bytes, known.size_bytes + shrunk_bytes)
            use.files = max(use.files, known.files + shrunk_files)
        if running and known is not None:
            most_bytes, most_files = known.size_bytes + shrunk_bytes, known.files + shrunk_files
            use.size_bytes = max(use.size_bytes, known.size_bytes)
            use.files = max(use.files, known.files)
            shrunk_bytes -= max(most_bytes - use.size_bytes, 0)
            shrunk_files -= max(most_files - use.files, 0)
        self._used = use
        self._shrunk_bytes -= shrunk_bytes
        self._shrunk_files -= shrunk_files
        # What was past the limit may go back, and not come again.
        self._allowed_bytes = max(self._limit_bytes, min(self._allowed_bytes, use.size_bytes))
        self._allowed_files = max(self._limit_files, min(self._allowed_files, use.files))
        self._counted_s, self.counted_from_s = self._clock(), shrunk.began_s
        self._took_s = self._counted_s - shrunk.began_s

    def allow_what_there_is(self) -> None:
        """Have what the next count finds be what there may be, or nothing could be done about it."""
        self._allowed_bytes = self._allowed_files = _ANY

    def lower_short(self) -> None:
        """Have what is left after an end for growing be what there may be while the disk is short."""
        if self._short is not None:
            # Never more, or each command could grow again.
            self._short = min(self._short[0], self._least_bytes()), min(self._short[1], self._least_files())

    def forget_short(self, free: Free) -> None:
        """Forget what there was when the disk began to be short, where it no longer is."""
        if not self.is_short(free):
            self._short = None

    def fits(self, size_bytes: int, files: int) -> bool:
        """Return whether so much more is within the limit."""
        return (
            self._least_bytes() + self._shrunk_bytes + self._unseen_bytes + size_bytes <= self._limit_bytes
            and self._least_files() + self._shrunk_files + files <= self._limit_files
        )

    def is_to_be_counted(self, free: Free) -> bool:
        """Return whether it is time for a count."""
        if self._used is None:
            return True
        since_s = self._clock() - self._counted_s
        pause_s = 0.0 if self._may_be_far() else self._took_s * _PAUSE
        if since_s < pause_s or not (self._shrunk_bytes or self._shrunk_files):
            return False
        if self.may_be_past():
            return True
        if self.is_short(free) and (self._short is None or self._may_be_past_floor(free)):
            return True
        return since_s >= max(self._took_s * _AT_EASE, _AT_EASE_LEAST_S)

    def is_suspected(self) -> bool:
        """Return whether who hides something from being counted now has a reason to."""
        return self.may_be_past() or (self._free is not None and self.is_short(self._free))

    def may_be_past(self) -> bool:
        """Return whether there may be more than there may be, if all that the disk shrank by was written here."""
        return (
            self._least_bytes() + self._shrunk_bytes > self._allowed_bytes + _SLACK_BYTES
            or self._least_files() + self._shrunk_files > self._allowed_files + _SLACK_FILES
        )

    def is_past(self, free: Free) -> bool:
        """Return whether what was counted is more than there may be.

        Where the disk is short that is what there was when it began to be, which the first to ask has noted.
        """
        if self.is_past_own():
            return True
        if not self.is_short(free) or self._used is None:
            return False
        if self._short is None:
            self._short = self._least_bytes(), self._least_files()
        return self.is_past_floor(free)

    def is_past_own(self) -> bool:
        """Return whether what was counted is more than the workspace's own limit allows, whatever the disk has."""
        return (
            self._least_bytes() > self._allowed_bytes + _SLACK_BYTES
            or self._least_files() > self._allowed_files + _SLACK_FILES
        )

    def is_far(self) -> bool:
        """Return whether what was counted is far past the limit."""
        return self._far(self._least_bytes(), self._least_files())

    def is_past_floor(self, free: Free) -> bool:
        """Return whether what was counted has grown since the disk began to be short."""
        return self._short is not None and self._grew(free, self._least_bytes(), self._least_files())

    def is_short(self, free: Free) -> bool:
        """Return whether less than the reserve is free."""
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes or free[1] < _RESERVE_FILES)

    def is_spent(self, free: Free) -> bool:
        """Return whether less than half of the reserve is free."""
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes // 2 or free[1] < _RESERVE_FILES // 2)

    def interval_s(self) -> float:
        """Return when to look again: in less time than it takes to fill what is left."""
        left_bytes = self._allowed_bytes - self._least_bytes() - self._shrunk_bytes
        if self._free is not None and self._reserve_bytes:
            left_bytes = min(left_bytes, self._free[0] - self._reserve_bytes)
        return min(max(left_bytes / _WRITTEN_PER_S, INTERVAL_LEAST_S), _INTERVAL_MOST_S)

    def _may_be_far(self) -> bool:
        return self._far(self._least_bytes() + self._shrunk_bytes, self._least_files() + self._shrunk_files)

    def _far(self, size_bytes: float, files: int) -> bool:
        far_bytes = self._limit_bytes + max(self._limit_bytes // _FAR_SHARE, _FAR_LEAST_BYTES)
        far_files = self._limit_files + max(self._limit_files // _FAR_SHARE, _FAR_LEAST_FILES)
        return size_bytes > far_bytes or files > far_files

    def _may_be_past_floor(self, free: Free) -> bool:
        return self._short is not None and self._grew(
            free, self._least_bytes() + self._shrunk_bytes, self._least_files() + self._shrunk_files
        )

    def _grew(self, free: Free, size_bytes: float, files: int) -> bool:
        short_bytes, short_files = self._short or (_ANY, _ANY)
        spent = self.is_spent(free)
        return size_bytes > short_bytes + (_SLACK_BYTES if spent else _SHORT_SLACK_BYTES) or files > short_files + (
            _SLACK_FILES if spent else _SHORT_SLACK_FILES
        )

    def _least_bytes(self) -> float:
        return 0.0 if self._used is None else self._used.size_bytes

    def _least_files(self) -> int:
        return 0 if self._used is None else self._used.files
