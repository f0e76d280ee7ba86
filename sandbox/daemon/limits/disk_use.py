"""How much of a disk the files below a directory take, and what of it no name leads to any more.

The tree may change underway, and whoever changes it may want to hide something. Directories are opened through their
parents and through no link. One that its owner has no right to read gets it for the while it is looked into. What still
cannot be seen is told, `hidden`, and which calls have processes that hide something, `hiding`. A file of several names
counts for each by its share, so it counts once.

What has lost its name keeps the directories above it, which may have lost theirs, and on some disks keep the blocks of
all names that were ever in them. Nobody can look up from a file or a socket, so which calls hold such ones is told:
`holding`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from sandbox.daemon.kernel import is_gvisor
from sandbox.daemon.supervisor.call_tree import call_of, is_dead, read_status

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
_SOCKETS_LIMIT_BYTES = 4 * 1024 * 1024
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR


class DiskUse:
    """What was counted so far."""

    def __init__(self) -> None:
        self.size_bytes = 0.0
        self.files = 0
        self.hidden = False
        self.hiding: set[int] = set()
        self.holding: set[int] = set()

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


def count_unlinked(top: str, use: DiskUse) -> Iterator[None]:
    """Count what tool processes and this one hold of a directory's disk that has no name any more; yields as well.

    This one: what it sends and takes, and outputs whose files tool code has removed.
    """
    held = _Held(top, use)
    held.count_own()
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


def is_open_here(wanted: os.stat_result) -> bool:
    """Return whether this process has a file open."""
    return any(os.path.samestat(state, wanted) for _, state in _own_descriptors())


def _own_descriptors() -> Iterator[tuple[int, os.stat_result]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.fstat(int(name))
        except OSError:
            pass  # what listed them


class _Held:
    """Looks into processes, for files and directories without a name."""

    def __init__(self, top: str, use: DiskUse) -> None:
        self._device = os.stat(top).st_dev
        kernel = os.uname()
        self._gvisor = is_gvisor(kernel.release, kernel.version)
        self._below = os.fsencode(top.rstrip("/") + "/")
        self._use = use
        self._seen: set[int] = set()
        self._bound = _bound_sockets()
        self._looked = 0

    def count_own(self) -> None:
        for fd, state in _own_descriptors():
            self._add(state, f"/proc/self/fd/{fd}")

    def count(self, pid: str, call: int) -> Iterator[None]:
        in_memory = False
        # A thread may have descriptors and a directory of its own. The first one may have ended, and has nothing then.
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
            for name in ("cwd", "root"):
                self._count_link(f"{place}/{name}", call)
            # Memory they have in common. What runs is held even where nothing of it is mapped any more.
            if not in_memory:
                in_memory = self._count_link(f"{place}/exe", call)
                if self._maps_hide(f"{place}/maps"):
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
                if self._bound is None or state.st_ino in self._bound:
                    self._use.holding.add(call)
                return
        except FileNotFoundError:
            return  # closed since the listing
        self._add(state, f"{place}/fd/{fd}", call)

    def _count_link(self, link: str, call: int) -> bool:
        """Count what a link of /proc leads to; return whether it leads anywhere."""
        try:
            self._add(os.stat(link), link, call)
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread that has ended
        except PermissionError:
            # gVisor asks for the same real user, which the server is not, and has no rights like those of files here.
            if not self._gvisor:
                raise
            return False
        return True

    def _add(self, state: os.stat_result, link: str, call: int = 0) -> None:
        """Count what no name leads to any more, once."""
        if state.st_dev != self._device:
            return
        # gVisor goes on to count a name that is gone, and its link says so.
        if state.st_nlink and not (self._gvisor and _leads(link).endswith(b" (deleted)")):
            return
        if call:
            self._use.holding.add(call)
        if state.st_ino not in self._seen:
            self._seen.add(state.st_ino)
            self._use.size_bytes += state.st_blocks * BLOCK_BYTES
            self._use.files += 1

    def _maps_hide(self, path: str) -> bool:
        """Return whether files may be mapped that have no name and are not open: nobody can say how large they are."""
        data = bytearray()
        try:
            with open(path, "rb", buffering=0) as file:
                while piece := file.read(65_536):
                    data += piece
                    if len(data) > _MAPS_LIMIT_BYTES:
                        return True
        except ProcessLookupError:
            return False  # a thread that has ended
        for line in data.splitlines():
            if line.endswith(b" (deleted)"):
                words = line.split(None, 5)
                if len(words) == 6 and words[5].startswith(self._below) and int(words[4]) not in self._seen:
                    return True
        return False


def _bound_sockets() -> set[int] | None:
    """Return the Unix sockets that have a name, None where they are too many to tell."""
    try:
        with open("/proc/net/unix", "rb", buffering=0) as file:
            data = bytearray()
            while piece := file.read(65_536):
                data += piece
                if len(data) > _SOCKETS_LIMIT_BYTES:
                    return None
    except OSError:
        return set()
    # The number of a socket is the last word, or there is a space and then its name, of whatever characters.
    told = (line.split(None, 6) for line in data.split(b"\n"))
    ends = (words[6].partition(b" ") for words in told if len(words) == 7)
    return {int(number) for number, named, _ in ends if named and number.isdigit()}


def _leads(link: str) -> bytes:
    """Return where a link leads, nothing where it is gone."""
    try:
        return os.readlink(os.fsencode(link))
    except OSError:
        return b""
