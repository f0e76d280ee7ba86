"""The quota of a directory of spilled outputs: the files in it never take more together, and the oldest go first.

Calls spill at the same time, so all that are open in one directory share one set of books. The directory is read when
a spill opens and not again: what tool code puts there later counts from the next spill on.
"""

from __future__ import annotations

import os
import stat
from collections import deque

# Tool code can plant a million names. So many are looked at, and a directory with more of them takes no spill. The
# oldest files go before there are that many, so planted ones go too, some at each spill.
SCAN_LIMIT_NAMES = 4096
FILES_LIMIT = 2048


class SpillQuotas:
    """The books of every directory in which a spill is open."""

    def __init__(self) -> None:
        self._books: dict[tuple[int, int], _Books] = {}

    def open(self, directory_fd: int, name: str, quota_bytes: int) -> SpillShare:
        """Enter a new, empty file in the books of its directory. Close what is returned."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
        try:
            state = os.fstat(fd)
            key = (state.st_dev, state.st_ino)
            books = self._books.get(key) or _Books()
            share = SpillShare(books, fd, name, quota_bytes)
            books.scan(fd, {name, *(other.name for other in books.shares)})
        except BaseException:
            os.close(fd)
            raise
        for unused in [place for place, other in self._books.items() if not other.shares]:
            del self._books[unused]
        self._books[key] = books
        books.shares.add(share)
        share.room_bytes(0)
        return share


class _Books:
    """What is known of one directory."""

    def __init__(self) -> None:
        self.shares: set[SpillShare] = set()
        self.others: deque[tuple[int, str, int]] = deque()  # (mtime in ns, name, bytes), the oldest first
        self.used_bytes = 0
        self.overfull = False

    def scan(self, fd: int, written: set[str]) -> None:
        """Read the directory: the regular files but for those that calls write."""
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
                    continue  # it has just gone
                if stat.S_ISREG(state.st_mode) and entry.name not in written:
                    others.append((state.st_mtime_ns, entry.name, state.st_size))
        self.others = deque(sorted(others))
        self.used_bytes = sum(size for _, _, size in others) + sum(share.size_bytes for share in self.shares)
        while len(self.others) >= FILES_LIMIT:
            self.remove_oldest(fd)

    def remove_oldest(self, fd: int) -> None:
        """Remove the oldest file that no call writes."""
        _, name, size = self.others.popleft()
        try:
            # unlink() follows no link, and a directory that took the name refuses it.
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError:
            return  # it stays, and so does what it takes
        self.used_bytes -= size


class SpillShare:
    """One open file's share of its directory's quota."""

    def __init__(self, books: _Books, fd: int, name: str, quota_bytes: int) -> None:
        self.name = name
        self.size_bytes = 0
        self._books = books
        self._fd = fd
        self._quota_bytes = quota_bytes

    def room_bytes(self, wanted_bytes: int) -> int:
        """Return how much of `wanted_bytes` may be written now; removes old files for it."""
        books = self._books
        if books.overfull:
            return 0
        while books.others and books.used_bytes + wanted_bytes > self._quota_bytes:
            books.remove_oldest(self._fd)
        return min(wanted_bytes, max(self._quota_bytes - books.used_bytes, 0))

    def add(self, size_bytes: int) -> None:
        """Book bytes that were written."""
        self.size_bytes += size_bytes
        self._books.used_bytes += size_bytes

    def close(self) -> None:
        """From now on the file is one of those that may be removed, the newest of them. Harmless the second time."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        books = self._books
        books.shares.discard(self)
        if any(share.name == self.name for share in books.shares):
            books.used_bytes -= self.size_bytes  # another call took the name, and with it this file went
        else:
            books.others.append((0, self.name, self.size_bytes))
