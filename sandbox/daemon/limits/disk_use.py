"""Disk usage below a directory, and of removed files that processes still have open.

Tool code may change the tree meanwhile in order to hide files. Directories are opened through their parents and never
through a link. A directory that its owner cannot read is made readable temporarily. `hidden` says that something could
not be seen, and `hiding` has the calls whose processes cannot be inspected. A file with several names counts by its
share for each.

A removed file keeps its directories, which may be removed as well, and on some disks keep the blocks of all names they
ever had. These cannot be found from a file or socket, so `keeping` has the calls that keep any.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sandbox.daemon.limits.kernel import is_gvisor
from sandbox.daemon.paths import open_with_rights
from sandbox.daemon.supervisor.call_tree import tool_processes

BLOCK_BYTES = 512
# Each level takes two descriptors. Of deeper directories, so many are counted afterwards.
_DEPTH_LIMIT = 128
_DEEP_LIMIT = 100
# Entries and descriptors that are inspected before other tasks run.
_TURN = 200
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR


class DiskUse:
    """What was counted so far; see the module."""

    def __init__(self) -> None:
        self.size_bytes = 0.0
        self.files = 0
        self.hidden = False
        self.hiding: set[int] = set()
        self.keeping: set[int] = set()

    def add(self, state: os.stat_result) -> None:
        self.files += 1
        links = 1 if stat.S_ISDIR(state.st_mode) else max(state.st_nlink, 1)
        self.size_bytes += state.st_blocks * BLOCK_BYTES / links


def count_tree(top: str, use: DiskUse) -> Iterator[None]:
    """Count everything below a directory into `use`; yields regularly, so the caller can run other tasks."""
    levels: list[_Directory] = []
    deep: list[_Directory] = []
    try:
        first = _Directory.open(top, None, use)
        if first is None:
            return
        levels.append(first)
        seen = 0
        while levels:
            directory = levels[-1]
            for entry in directory.entries:
                seen += 1
                if seen % _TURN == 0:
                    yield
                if not entry.is_dir(follow_symlinks=False):
                    _count_entry(entry, use)
                elif len(levels) >= _DEPTH_LIMIT and len(deep) >= _DEEP_LIMIT:
                    use.hidden = True
                elif (below := _Directory.open(entry.name, directory.fd, use)) is None:
                    continue
                elif len(levels) >= _DEPTH_LIMIT:
                    deep.append(below)
                else:
                    levels.append(below)
                    break
            else:
                levels.pop().close()
                if not levels and deep:
                    levels.append(deep.pop())
    finally:
        for directory in (*levels, *deep):
            directory.close()


def _count_entry(entry: os.DirEntry[str], use: DiskUse) -> None:
    try:
        use.add(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        pass  # removed since the listing
    except OSError:
        use.hidden = True


class _Directory:
    """An open directory. close() restores its mode if that was changed."""

    def __init__(self, fd: int, mode: int | None) -> None:
        self.fd = fd
        self._mode = mode
        self.entries = os.scandir(fd)

    @classmethod
    def open(cls, name: str, parent_fd: int | None, use: DiskUse) -> _Directory | None:
        """Open and count a directory of a parent; None if it is gone or cannot be opened."""
        fd, mode = -1, None
        try:
            try:
                fd = os.open(name, _OPEN, dir_fd=parent_fd)
            except PermissionError:
                fd, mode = open_with_rights(name, parent_fd, _OWNER_READS)
            state = os.fstat(fd)
            if mode is None and not state.st_mode & stat.S_IXUSR:
                mode = stat.S_IMODE(state.st_mode)
                os.fchmod(fd, mode | _OWNER_READS)
            directory = cls(fd, mode)
        except (FileNotFoundError, NotADirectoryError):
            pass  # removed or replaced since the listing
        except OSError:
            use.hidden = True
        else:
            use.add(state)
            return directory
        if fd >= 0:
            os.close(fd)
        return None

    def close(self) -> None:
        self.entries.close()
        if self._mode is not None:
            with suppress(OSError):
                os.fchmod(self.fd, self._mode)
        os.close(self.fd)


def count_unlinked(top: str, use: DiskUse) -> Iterator[None]:
    """Count removed files on a directory's disk that tool processes and this one have open; yields as well."""
    # This process has files open that it sends or receives, and outputs that tool code has removed.
    unlinked = _UnlinkedFiles(top, use)
    for fd, state in _own_descriptors():
        unlinked.add(state, f"/proc/self/fd/{fd}")
    for pid, call, _ in tool_processes():
        try:
            yield from unlinked.count(pid, call)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
        except OSError:
            use.hiding.add(call)  # it cannot be inspected
        yield


def is_open_here(wanted: os.stat_result) -> bool:
    """Return whether this process has a file open."""
    return any(os.path.samestat(state, wanted) for _, state in _own_descriptors())


def _own_descriptors() -> Iterator[tuple[int, os.stat_result]]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            yield int(name), os.fstat(int(name))


class _UnlinkedFiles:
    """Inspects processes for files and directories without a name."""

    def __init__(self, top: str, use: DiskUse) -> None:
        self._device = os.stat(top).st_dev
        kernel = os.uname()
        self._gvisor = is_gvisor(kernel.release, kernel.version)
        self._below = os.fsencode(top.rstrip("/") + "/")
        self._use = use
        self._seen: set[int] = set()
        self._bound = _bound_sockets()
        self._looked = 0

    def count(self, pid: int, call: int) -> Iterator[None]:
        in_memory = False
        # Threads may have their own descriptors and directory. The first one may have ended, and has none then.
        for task in os.listdir(f"/proc/{pid}/task"):
            place = f"/proc/{pid}/task/{task}"
            for fd in os.listdir(f"{place}/fd"):
                self._looked += 1
                # Of all processes together. A call with more of them counts as hiding.
                if self._looked > 20_000:
                    self._use.hiding.add(call)
                    return
                if self._looked % _TURN == 0:
                    yield
                self._count_descriptor(place, fd, call)
            for name in ("cwd", "root"):
                self._count_link(f"{place}/{name}", call)
            # They share memory. The running executable stays open even if none of it is mapped any more.
            if not in_memory:
                in_memory = self._count_link(f"{place}/exe", call)
                if self._maps_hide(f"{place}/maps"):
                    self._use.hiding.add(call)

    def _count_descriptor(self, place: str, fd: str, call: int) -> None:
        try:
            state = os.stat(f"{place}/fd/{fd}")
            if stat.S_ISSOCK(state.st_mode):
                with open(f"{place}/fdinfo/{fd}", "rb", buffering=0) as file:
                    in_flight = (file.read(4096) or b"").partition(b"scm_fds:")[2].split(None, 1)
                # Files in flight between processes belong to none.
                if in_flight and in_flight[0] != b"0":
                    self._use.hiding.add(call)
                if self._bound is None or state.st_ino in self._bound:
                    self._use.keeping.add(call)
                return
        except FileNotFoundError:
            return  # closed since the listing
        self.add(state, f"{place}/fd/{fd}", call)

    def _count_link(self, link: str, call: int) -> bool:
        """Count the target of a /proc link; return whether it has one."""
        try:
            self.add(os.stat(link), link, call)
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread that has ended
        except PermissionError:
            # gVisor requires the same real user, which the server has not, and ignores its file system rights.
            if not self._gvisor:
                raise
            return False
        return True

    def add(self, state: os.stat_result, link: str, call: int = 0) -> None:
        """Count a file without a name, once."""
        if state.st_dev != self._device:
            return
        # gVisor still counts a removed name, but marks the link.
        if state.st_nlink and not (self._gvisor and _target(link).endswith(b" (deleted)")):
            return
        if call:
            self._use.keeping.add(call)
        if state.st_ino not in self._seen:
            self._seen.add(state.st_ino)
            self._use.size_bytes += state.st_blocks * BLOCK_BYTES
            self._use.files += 1

    def _maps_hide(self, path: str) -> bool:
        """Return whether removed files that are not open may be mapped: their size is unknown."""
        try:
            data = _read_up_to(path, 1024 * 1024)
        except ProcessLookupError:
            return False  # a thread that has ended
        if data is None:
            return True
        for line in data.splitlines():
            if line.endswith(b" (deleted)"):
                words = line.split(None, 5)
                if len(words) == 6 and words[5].startswith(self._below) and int(words[4]) not in self._seen:
                    return True
        return False


def _bound_sockets() -> set[int] | None:
    """Return the Unix sockets that have a name, None if there are too many."""
    try:
        data = _read_up_to("/proc/net/unix", 4 * 1024 * 1024)
    except OSError:
        return set()
    if data is None:
        return None
    # The last word is the inode, or the inode, a space and the socket's name of any characters.
    found = (line.split(None, 6) for line in data.split(b"\n"))
    ends = (words[6].partition(b" ") for words in found if len(words) == 7)
    return {int(number) for number, named, _ in ends if named and number.isdigit()}


def _read_up_to(path: str, limit_bytes: int) -> bytearray | None:
    """Return what the kernel reports in a file, None if it is more than the limit."""
    data = bytearray()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(65_536):
            data += piece
            if len(data) > limit_bytes:
                return None
    return data


def _target(link: str) -> bytes:
    try:
        return os.readlink(os.fsencode(link))
    except OSError:
        return b""


# A longer count continues, for the next caller.
_WAIT_S = 1.0


class DiskReading:
    """Disk usage for callers, counted on request but only as often as is cheap, with the lock `counting`.

    `unlinked` includes removed files that processes have open. The watch has numbers of its own (disk_ledger.py), of
    the last time it had a reason to count, and rather too large.
    """

    def __init__(
        self,
        tops: Sequence[str],
        counting: asyncio.Lock,
        *,
        unlinked: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tops = tops
        self._counting = counting
        self._unlinked = unlinked
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._found: Sequence[DiskUse | None] = [None] * len(tops)
        self._due_s = 0.0

    async def read(self) -> Sequence[DiskUse | None]:
        """Return the usage of each directory, possibly a little old; None if it is unknown."""
        if self._task is None and self._clock() >= self._due_s:
            self._task = asyncio.get_running_loop().create_task(self._count())
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_WAIT_S)
        return self._found

    async def _count(self) -> None:
        try:
            # A count may change a directory's mode temporarily, which must not happen twice at once.
            async with self._counting:
                began_s = self._clock()
                self._found = [await self._count_below(top) for top in self._tops]
                now_s = self._clock()
                # A count is followed by a pause of so many times its duration.
                self._due_s = now_s + (now_s - began_s) * 9
        finally:
            self._task = None

    async def _count_below(self, top: str) -> DiskUse | None:
        use = DiskUse()
        try:
            if self._unlinked:
                await through(count_unlinked(top, use))
            await through(count_tree(top, use))
        except OSError:
            return None
        return use


def mounted_use(top: str) -> DiskUse | None:
    """Return the usage of a whole file system; None if it does not report it."""
    # A count would find the same except on gVisor, whose tmpfs reports the full size for sparse files.
    try:
        state = os.statvfs(top)
    except OSError:
        return None
    use = DiskUse()
    use.size_bytes = (state.f_blocks - state.f_bfree) * state.f_frsize
    use.files = state.f_files - state.f_ffree
    return use


async def through(steps: Iterator[None]) -> None:
    """Run the steps of a count, and other tasks in between."""
    for _ in steps:
        await asyncio.sleep(0)
