"""The file for the output of a call that is too large to cross the socket, and the quota of such files."""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from typing import Any

from sandbox.daemon.failures import Fault
from sandbox.daemon.files.tree_files import PRIVATE_NAME
from sandbox.daemon.paths import Place, closing, components
from sandbox.v1 import channel_pb2 as wire

# Tool code can create a million names. So many are read, and a directory with more accepts no spill. The oldest files
# are removed before there are that many, so each spill also removes some files of tool code.
SCAN_LIMIT_NAMES = 4096
FILES_LIMIT = 2048


class SpillQuotas:
    """The accounts of all directories with an open spill; concurrent spills to one directory share one account.

    The directory is read when a spill opens: files that tool code adds later count from the next spill on.
    """

    def __init__(self) -> None:
        self._accounts: dict[tuple[int, int], Account] = {}

    def open(self, directory_fd: int, spill: Spill) -> Account:
        """Add a new, empty file to its directory's account and return it; the caller makes the file leave it."""
        state = os.fstat(directory_fd)
        key = (state.st_dev, state.st_ino)
        self._accounts = {place: account for place, account in self._accounts.items() if account.spills}
        account = self._accounts.get(key) or Account(directory_fd)
        account.spills.add(spill)
        try:
            account.scan()
        except BaseException:
            account.leave(spill)
            raise
        self._accounts[key] = account
        account.allow(0, spill.quota_bytes)
        return account


class Account:
    """The files of one directory, and a descriptor of it, which is closed with the last spill."""

    def __init__(self, directory_fd: int) -> None:
        self._fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
        self.spills: set[Spill] = set()
        self._others: deque[tuple[int, str, int]] = deque()  # (mtime in ns, name, bytes), the oldest first
        self._used_bytes = 0
        self._overfull = False

    def scan(self) -> None:
        """Read the regular files of the directory, except those being written."""
        written = {spill.name for spill in self.spills}
        others = []
        self._overfull = False
        with os.scandir(self._fd) as entries:
            for seen, entry in enumerate(entries):
                if seen >= SCAN_LIMIT_NAMES:
                    self._overfull = True
                    break
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # it was removed meanwhile
                if stat.S_ISREG(state.st_mode) and entry.name not in written:
                    others.append((state.st_mtime_ns, entry.name, state.st_size))
        self._others = deque(sorted(others))
        self._used_bytes = sum(size for _, _, size in others) + sum(spill.size_bytes for spill in self.spills)
        while len(self._others) >= FILES_LIMIT:
            self._remove_oldest()

    def allow(self, wanted_bytes: int, quota_bytes: int) -> int:
        """Return how much of `wanted_bytes` may be written now, after removing old files."""
        if self._overfull:
            return 0
        while self._others and self._used_bytes + wanted_bytes > quota_bytes:
            self._remove_oldest()
        return min(wanted_bytes, max(quota_bytes - self._used_bytes, 0))

    def add(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def leave(self, spill: Spill) -> None:
        """Make a file the newest of those that may be removed."""
        self.spills.remove(spill)
        if any(other.name == spill.name for other in self.spills):
            self._used_bytes -= spill.size_bytes  # another call replaced this file
        else:
            self._others.append((0, spill.name, spill.size_bytes))
        if not self.spills:
            os.close(self._fd)

    def _remove_oldest(self) -> None:
        _, name, size = self._others.popleft()
        try:
            # unlink() does not follow links, and fails for a directory of that name.
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:
            return  # it stays, and still counts
        self._used_bytes -= size


def create_private_file(place: Place, workspace: str) -> int:
    """Return a descriptor for writing a new file at `place`. Raises Fault and OSError.

    It replaces whatever had its name, and is never created through a link. The private directory is hidden from git.
    """
    private = [*components(workspace), PRIVATE_NAME]
    if place.names[: len(private)] == private:
        _hide_from_git(workspace)
    with suppress(FileNotFoundError):
        os.unlink(place.name, dir_fd=place.directory_fd)
    return place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def write_what_fits(fd: int, data: memoryview) -> int:
    """Write until all is written or it fails, and return how many bytes were written."""
    done = 0
    with suppress(OSError):
        while done < len(data):
            done += os.write(fd, data[done:])
    return done


def _hide_from_git(workspace: str) -> None:
    with (
        suppress(Fault, OSError),  # usually it exists
        Place(f"{workspace}/{PRIVATE_NAME}/.gitignore") as place,
        closing(place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)) as fd,
    ):
        try:
            os.write(fd, b"*\n")
        except OSError:
            # The disk is full. An empty file would never be completed.
            os.unlink(place.name, dir_fd=place.directory_fd)


_SHA256_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Spill:
    """Writes raw bytes in order of arrival up to a limit, and counts their size, newlines and SHA-256.

    `quota_bytes` bounds all files of its directory together; 0 is no quota. A spill never fails a call: what cannot be
    written (no space, a link in the way, no path, no descriptor) leaves it incomplete.
    """

    def __init__(
        self, path: str, limit_bytes: int, workspace: str, *, quotas: SpillQuotas | None = None, quota_bytes: int = 0
    ) -> None:
        self.name = ""
        self.quota_bytes = quota_bytes
        self.size_bytes = 0
        self._path = path
        self._left_bytes = limit_bytes
        self._sha256 = _new_sha256()
        self._newlines = 0
        self._ends_with_newline = True
        self._incomplete = False
        self._fd = -1
        self._account: Account | None = None
        if self._sha256 is None:
            self._incomplete = True  # nothing is written without a digest
            return
        try:
            with Place(path, make_parents=True, what="spill_path") as place:
                self.name = place.name
                self._fd = create_private_file(place, workspace)
                if quotas is not None and quota_bytes:
                    self._account = quotas.open(place.directory_fd, self)
        except (Fault, OSError):
            self._incomplete = True

    def write(self, data: bytes | bytearray, size: int) -> None:
        """Append the first `size` bytes, as far as they fit."""
        if self._incomplete:
            return
        allowed_bytes = min(size, self._left_bytes)
        if self._account is not None:
            allowed_bytes = self._account.allow(allowed_bytes, self.quota_bytes)
        done = write_what_fits(self._fd, memoryview(data)[:allowed_bytes])
        self._incomplete = done < size
        view = memoryview(data)[:done]
        self._left_bytes -= done
        self.size_bytes += done
        if self._account is not None:
            self._account.add(done)
        self._sha256.update(view)
        if done:
            self._newlines += data.count(b"\n", 0, done)
            self._ends_with_newline = view[done - 1] == 0x0A

    def close(self) -> wire.Evicted:
        self.abandon()
        return wire.Evicted(
            path=self._path,
            size_bytes=self.size_bytes,
            lines=self._newlines + (not self._ends_with_newline),
            sha256=_SHA256_OF_NOTHING if self._sha256 is None else self._sha256.hexdigest(),
            incomplete=self._incomplete,
        )

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._account is not None:
            self._account.leave(self)
            self._account = None


def _new_sha256() -> Any:
    """Return a new SHA-256, None if no module can be loaded for lack of descriptors or memory."""
    # hashlib loads OpenSSL, which an idle daemon does not need; the others are built into Python.
    for name in ("hashlib", "_sha2", "_sha256"):
        try:
            return __import__(name).sha256()
        except (ImportError, OSError, MemoryError, ValueError, AttributeError):
            continue  # hashlib fails in any of these ways if a part of it is missing
    return None
