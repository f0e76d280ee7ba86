"""The accounting of a workspace's disk: its last count, what may have been written since, and the decisions from both.

It does no I/O and never waits: the watch (disk_watch.py) reports free space and counts, and asks.
"""

import time
from collections.abc import Callable
from operator import add, sub

from sandbox.daemon.limits.disk_use import DiskUse

_MIB = 1024 * 1024
INTERVAL_LEAST_S = 0.05
_INTERVAL_MOST_S = 0.25
# Faster than a sandbox can write; it bounds the time to fill what is left.
_WRITTEN_PER_S = 2_000 * _MIB
_ANY = 2**62
_RESERVE_FILES = 50_000
"""The reserve of inodes on the disk: a host without any is as stuck as one without a byte."""
# A count is due at the latest after so many times the duration of the last one, unless far too much may have been
# written meanwhile.
_PAUSE = 9
# Other tenants that free space hide what is written here, so it is counted now and then without a suspicion as well.
_ROUTINE = 100
_ROUTINE_LEAST_S = 5.0

FULL = "the workspace holds {size:,} bytes in {files:,} files, and {limit:,} bytes in {most:,} files is its limit"

Free = tuple[int, int]
"""Bytes and files."""
Amount = tuple[float, float]
"""Bytes and files."""

# A workspace over its limit may vary by so much before it counts as having grown,
_SLACK: Amount = (_MIB, 100)
# and by so much while the disk is short for all.
_SHORT_SLACK: Amount = (16 * _MIB, 1_000)
# So far over the limit nothing is started: a quarter of it, and at least what a late look may miss.
_FAR_SHARE = 4
_FAR_LEAST: Amount = (256 * _MIB, 50_000)


def _each(function: Callable[..., float], *amounts: Amount) -> Amount:
    """Return what a function makes of the bytes, and of the files, of some amounts."""
    size_bytes, files = map(function, *amounts)
    return size_bytes, files


def _sum(one: Amount, other: Amount) -> Amount:
    return _each(add, one, other)


def _over(amount: Amount, limit: Amount, slack: Amount = (0, 0)) -> bool:
    return amount[0] > limit[0] + slack[0] or amount[1] > limit[1] + slack[1]


Shrunk = tuple[Amount, float]
"""How much the disk had shrunk since the last count when another one began, and when that was."""


class DiskLedger:  # large: the ledger's invariants need one object
    """The accounting of one workspace. Limits of 0 are no limits."""

    def __init__(
        self, limit_bytes: int, limit_files: int, reserve_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit: tuple[int, int] = limit_bytes or _ANY, limit_files or _ANY
        self._reserve_bytes = reserve_bytes
        self.clock = clock
        self._used: Amount | None = None  # by the last count
        # How much the disk has shrunk since, and what was free at the last look; None while nothing looks.
        self._shrunk: Amount = (0.0, 0)
        self._expected_s = float("-inf")
        self.free: Free | None = None
        # What is being written where no count sees it.
        self._unseen_bytes = 0
        # What a workspace over its limit may have, so that files can be removed by commands.
        self._allowed: Amount = self._limit
        # What it had when the disk became short, or less if it had less after it was ended for growing.
        self._floor: Amount | None = None
        self._counted_s = clock()
        self._took_s = 0.0
        self.counted_from_s = float("-inf")
        """When the last count began, by clock()."""

    @property
    def used(self) -> tuple[int, int]:
        size_bytes, files = self._known()
        return int(size_bytes), int(files)

    @property
    def counted(self) -> bool:
        return self._used is not None

    @property
    def full_message(self) -> str:
        size_bytes, files = self.used
        return FULL.format(size=size_bytes, files=files, limit=self._limit[0], most=self._limit[1])

    def look(self, free: Free) -> None:
        # A sum of decreases: space that others free in between does not count against it.
        self._shrunk = _sum(self._shrunk, _each(max, _each(sub, self.free or free, free), (0, 0)))
        self.free = free

    def look_away(self) -> None:
        """Ignore what the disk shrinks by until the next look."""
        self.free = None

    def expect(self, size_bytes: int, files: int = 0) -> None:
        """Count what is about to be written."""
        self._expected_s = self.clock()
        self._shrunk = _sum(self._shrunk, (size_bytes, files))

    def hide(self, size_bytes: int) -> None:
        """Keep expected bytes counted, whatever a count finds; less than 0 lets the next count see them again."""
        self._shrunk = _sum(self._shrunk, (-size_bytes, 0))
        self._unseen_bytes += size_bytes

    def begin_count(self) -> Shrunk:
        return self._shrunk, self.clock()

    def take_count(self, use: DiskUse, shrunk: Shrunk, *, running: bool = False) -> None:
        """Record a count, and what the disk shrank by during it."""
        # A `running` process may move files to where was counted already, so a lower count is not trusted then.
        # So may a file call: what it replaces by a name of a file with many is a part of that file which is not seen.
        written, began_s = shrunk
        running = running or self._expected_s >= began_s
        found: Amount = use.size_bytes, use.files
        if self._used is None:
            self.allow_current_use()
        else:
            most = _sum(self._used, written)
            if use.hidden:
                found = _each(max, found, most)
            if running:
                found = _each(max, found, self._used)
                written = _each(sub, written, _each(max, _each(sub, most, found), (0, 0)))
        self._used = found
        self._shrunk = _each(sub, self._shrunk, written)
        # What was over the limit may shrink, and not grow again.
        self._allowed = _each(max, self._limit, _each(min, self._allowed, found))
        self._counted_s, self.counted_from_s = self.clock(), began_s
        self._took_s = self._counted_s - began_s

    def allow_current_use(self) -> None:
        """Allow whatever the next count finds, so that files can be removed by commands."""
        self._allowed = (_ANY, _ANY)

    def lower_floor(self) -> None:
        """Allow only what is left after an end for growing, while the disk is short."""
        if self._floor is not None:
            # Never more, or each command could grow again.
            self._floor = _each(min, self._floor, self._known())

    def update_floor(self, free: Free) -> None:
        """Forget the floor once the disk is no longer short."""
        if not self.is_short(free):
            self._floor = None

    def fits(self, size_bytes: int, files: int) -> bool:
        return not _over(_sum(self._most(), (self._unseen_bytes + size_bytes, files)), self._limit)

    def fits_counted(self, size_bytes: int, files: int) -> bool:
        """Return fits(), as if nothing had been written since the last count that it did not see."""
        return not _over(_sum(self._known(), (size_bytes, files)), self._limit)

    def is_count_due(self, free: Free) -> bool:
        if self._used is None:
            return True
        since_s = self.clock() - self._counted_s
        pause_s = 0.0 if self._is_far(self._most()) else self._took_s * _PAUSE
        if since_s < pause_s or not (self._shrunk[0] or self._shrunk[1]):
            return False
        if self.may_be_past():
            return True
        if self.is_short(free) and (self._floor is None or self._grew(free, self._most())):
            return True
        return since_s >= max(self._took_s * _ROUTINE, _ROUTINE_LEAST_S)

    def is_suspected(self) -> bool:
        """Return whether a call that hides files from counts has a reason to."""
        return self.may_be_past() or (self.free is not None and self.is_short(self.free))

    def may_be_past(self) -> bool:
        """Return whether the workspace is over what is allowed if all that the disk shrank by was written here."""
        return _over(self._most(), self._allowed, _SLACK)

    def is_past(self, free: Free) -> bool:
        """Return whether the counted use is over what is allowed."""
        # While the disk is short that is the use when it became short, which the first call records.
        if self.is_past_own():
            return True
        if not self.is_short(free) or self._used is None:
            return False
        if self._floor is None:
            self._floor = self._known()
        return self.is_past_floor(free)

    def is_past_own(self) -> bool:
        """Return whether the counted use is over the workspace's own limit, whatever the disk has."""
        return _over(self._known(), self._allowed, _SLACK)

    def is_far(self) -> bool:
        return self._is_far(self._known())

    def is_past_floor(self, free: Free) -> bool:
        """Return whether the counted use has grown since the disk became short."""
        return self._floor is not None and self._grew(free, self._known())

    def is_short(self, free: Free) -> bool:
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes or free[1] < _RESERVE_FILES)

    def is_spent(self, free: Free) -> bool:
        return self._reserve_bytes > 0 and (free[0] < self._reserve_bytes // 2 or free[1] < _RESERVE_FILES // 2)

    def interval_s(self) -> float:
        """Return when to look again: before what is left can be filled."""
        left_bytes = self._allowed[0] - self._most()[0]
        if self.free is not None and self._reserve_bytes:
            left_bytes = min(left_bytes, self.free[0] - self._reserve_bytes)
        return min(max(left_bytes / _WRITTEN_PER_S, INTERVAL_LEAST_S), _INTERVAL_MOST_S)

    def _is_far(self, amount: Amount) -> bool:
        limit_bytes, limit_files = self._limit
        margin = max(limit_bytes // _FAR_SHARE, _FAR_LEAST[0]), max(limit_files // _FAR_SHARE, _FAR_LEAST[1])
        return _over(amount, self._limit, margin)

    def _grew(self, free: Free, amount: Amount) -> bool:
        return _over(amount, self._floor or (_ANY, _ANY), _SLACK if self.is_spent(free) else _SHORT_SLACK)

    def _known(self) -> Amount:
        return self._used or (0.0, 0)

    def _most(self) -> Amount:
        return _sum(self._known(), self._shrunk)
