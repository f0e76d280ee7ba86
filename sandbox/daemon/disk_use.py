"""How much of a disk the files below a directory take, and what of it no name leads to any more.

The tree may change underway, and whoever changes it may want to hide something. Directories are opened through their
parents and through no link. One that its owner has no right to read gets it for the while it is looked into. What still
cannot be seen is told, `hidden`, and which calls have processes that hide something, `hiding`. A file of several names
counts for each by its share, so it counts once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from sandbox.daemon.call_tree import call_of, is_dead, read_status
from sandbox.daemon.posture import is_gvisor

BLOCK_BYTES = 512
# Each level holds two descriptors. What lies deeper is looked into afterwards, so many of its directories.
_DEPTH_LIMIT = 128
_DEEP_LIMIT = 100
# Entries, and descriptors of processes, that are looked at before others have their turn.
_TURN = 200
# Of all processes together. Who has more of them open hides something, or might.
_DESCRIPTORS_LIMIT = 20_000
_MAPS_LIMIT_BYTES = 1024 * 1024
_FDINFO_BYTES = 4096
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR


class DiskUse:
    """What was counted so far."""

    def __init__(self) -> None:
        self.size_bytes = 0.0
        self.files = 0
        self.hidden = False
        self.hiding: set[int] = set()

    def add(self, state: os.stat_result) -> None:
        """Count one name of a file or a directory."""
        self.files += 1
        links = 1 if stat.S_ISDIR(state.st_mode) else max(state.st_nlink, 1)
        self.size_bytes += state.st_blocks * BLOCK_BYTES / links


def count_tree(top: str, use: DiskUse) -> Iterator[None]:
    """Count everything below a directory into `use`; yields now and then, for others to have their turn."""
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
        pass  # gone since the listing
    except OSError:
        use.hidden = True


class _Directory:
    """An open directory. Its rights, where they had to be changed, are given back when it is closed."""

    def __init__(self, fd: int, mode: int | None) -> None:
        self.fd = fd
        self._mode = mode
        self.entries = os.scandir(fd)

    @classmethod
    def open(cls, name: str, parent_fd: int | None, use: DiskUse) -> _Directory | None:
        """Return a directory of a parent, counted; None for one that is gone or cannot be seen."""
        fd, mode = -1, None
        try:
            try:
                fd = os.open(name, _OPEN, dir_fd=parent_fd)
            except PermissionError:
                fd, mode = _opened_by_right(name, parent_fd)
            state = os.fstat(fd)
            if mode is None and not state.st_mode & stat.S_IXUSR:
                mode = _give_right(fd, state)
            directory = cls(fd, mode)
        except (FileNotFoundError, NotADirectoryError):
            pass  # gone, or another thing by now, since the listing
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
            try:
                os.fchmod(self.fd, self._mode)
            except OSError:
                pass
        os.close(self.fd)


def _opened_by_right(name: str, parent_fd: int | None) -> tuple[int, int]:
    """Open a directory that its owner may not read; return what its mode was. The owner may change that."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        # By way of /proc, because a descriptor of a path alone cannot be changed.
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, mode | _OWNER_READS)
        return os.open(place, _OPEN & ~os.O_NOFOLLOW), mode
    finally:
        os.close(handle)


def _give_right(fd: int, state: os.stat_result) -> int:
    mode = stat.S_IMODE(state.st_mode)
    os.fchmod(fd, mode | _OWNER_READS)
    return mode


def count_held(top: str, use: DiskUse) -> Iterator[None]:
    """Count what tool processes hold of files on a directory's disk that have no name any more; yields as well."""
    held = _Held(top, use)
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        status = read_status(int(name))
        call = call_of(status) if status is not None and not is_dead(status) else 0
        if not call:
            continue
        try:
            yield from held.count(name, call)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
        except OSError:
            use.hiding.add(call)  # it lets nobody look into it
        yield


class _Held:
    """Looks into processes, for files without a name."""

    def __init__(self, top: str, use: DiskUse) -> None:
        self._device = os.stat(top).st_dev
        kernel = os.uname()
        self._gvisor = is_gvisor(kernel.release, kernel.version)
        self._below = os.fsencode(top.rstrip("/") + "/")
        self._use = use
        self._seen: set[int] = set()
        self._looked = 0

    def count(self, pid: str, call: int) -> Iterator[None]:
        # A thread may have descriptors of its own.
        for task in os.listdir(f"/proc/{pid}/task"):
            place = f"/proc/{pid}/task/{task}"
            for fd in os.listdir(f"{place}/fd"):
                self._looked += 1
                if self._looked > _DESCRIPTORS_LIMIT:
                    self._use.hiding.add(call)
                    return
                if self._looked % _TURN == 0:
                    yield
                self._count_descriptor(place, fd, call)
        if self._maps_hide(f"/proc/{pid}/maps"):
            self._use.hiding.add(call)

    def _count_descriptor(self, place: str, fd: str, call: int) -> None:
        try:
            state = os.stat(f"{place}/fd/{fd}")
            if stat.S_ISSOCK(state.st_mode):
                with open(f"{place}/fdinfo/{fd}", "rb", buffering=0) as file:
                    said = (file.read(_FDINFO_BYTES) or b"").partition(b"scm_fds:")[2].split(None, 1)
                # Files that are under way between processes are nobody's meanwhile.
                if said and said[0] != b"0":
                    self._use.hiding.add(call)
                return
        except FileNotFoundError:
            return  # closed since the listing
        if not stat.S_ISREG(state.st_mode) or state.st_dev != self._device:
            return
        # gVisor goes on to count a name that is gone, and its link says so.
        nameless = not state.st_nlink or (self._gvisor and _leads(f"{place}/fd/{fd}").endswith(b" (deleted)"))
        if nameless and state.st_ino not in self._seen:
            self._seen.add(state.st_ino)
            self._use.size_bytes += state.st_blocks * BLOCK_BYTES
            self._use.files += 1

    def _maps_hide(self, path: str) -> bool:
        """Return whether files may be mapped that have no name and are not open: nobody can say how large they are."""
        data = bytearray()
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(65_536):
                data += piece
                if len(data) > _MAPS_LIMIT_BYTES:
                    return True
        for line in data.splitlines():
            if line.endswith(b" (deleted)"):
                words = line.split(None, 5)
                if len(words) == 6 and words[5].startswith(self._below) and int(words[4]) not in self._seen:
                    return True
        return False


def _leads(link: str) -> bytes:
    """Return where a link leads, nothing where it is gone."""
    try:
        return os.readlink(os.fsencode(link))
    except OSError:
        return b""
