"""The quota of a directory of spilled outputs: it bounds their total size by removing the oldest.

Concurrent spills to one directory share one account. The directory is read when a spill opens: files that tool code
adds later count from the next spill on.
"""

from __future__ import annotations

import os
import stat
from collections import deque

# Tool code can create a million names. So many are read, and a directory with more accepts no spill. The oldest files
# are removed before there are that many, so each spill also removes some files of tool code.
SCAN_LIMIT_NAMES = 4096
FILES_LIMIT = 2048


class SpillQuotas:
    """The accounts of all directories with an open spill."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[int, int], _Account] = {}

    def open(self, directory_fd: int, name: str, quota_bytes: int) -> SpillShare:
        """Add a new, empty file to its directory's account; the caller closes the share."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
        try:
            state = os.fstat(fd)
            key = (state.st_dev, state.st_ino)
            account = self._accounts.get(key) or _Account()
            share = SpillShare(account, fd, name, quota_bytes)
            account.scan(fd, {name, *(other.name for other in account.shares)})
        except BaseException:
            os.close(fd)
            raise
        for unused in [place for place, other in self._accounts.items() if not other.shares]:
            del self._accounts[unused]
        self._accounts[key] = account
        account.shares.add(share)
        share.allow(0)
        return share


class _Account:
    """The files of one directory."""

    def __init__(self) -> None:
        self.shares: set[SpillShare] = set()
        self.others: deque[tuple[int, str, int]] = deque()  # (mtime in ns, name, bytes), the oldest first
        self.used_bytes = 0
        self.overfull = False

    def scan(self, fd: int, written: set[str]) -> None:
        """Read the regular files of the directory, except those being written."""
        others = []
        self.overfull = False
        with os.scandir(fd) as entries:
            for seen, entry in enumerate(entries):
                if seen >= SCAN_LIMIT_NAMES:
                    self.overfull = True
                    break
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # it was removed meanwhile
                if stat.S_ISREG(state.st_mode) and entry.name not in written:
                    others.append((state.st_mtime_ns, entry.name, state.st_size))
        self.others = deque(sorted(others))
        self.used_bytes = sum(size for _, _, size in others) + sum(share.size_bytes for share in self.shares)
        while len(self.others) >= FILES_LIMIT:
            self.remove_oldest(fd)

    def remove_oldest(self, fd: int) -> None:
        _, name, size = self.others.popleft()
        try:
            # unlink() does not follow links, and fails for a directory of that name.
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError:
            return  # it stays, and still counts
        self.used_bytes -= size


class SpillShare:
    """One open file's share of its directory's quota."""

    def __init__(self, account: _Account, fd: int, name: str, quota_bytes: int) -> None:
        self.name = name
        self.size_bytes = 0
        self._account = account
        self._fd = fd
        self._quota_bytes = quota_bytes

    def allow(self, wanted_bytes: int) -> int:
        """Return how much of `wanted_bytes` may be written now, after removing old files."""
        account = self._account
        if account.overfull:
            return 0
        while account.others and account.used_bytes + wanted_bytes > self._quota_bytes:
            account.remove_oldest(self._fd)
        return min(wanted_bytes, max(self._quota_bytes - account.used_bytes, 0))

    def add(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._account.used_bytes += size_bytes

    def close(self) -> None:
        """Make the file the newest of those that may be removed. Safe to call twice."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        account = self._account
        account.shares.discard(self)
        if any(share.name == self.name for share in account.shares):
            account.used_bytes -= self.size_bytes  # another call replaced this file
        else:
            account.others.append((0, self.name, self.size_bytes))
