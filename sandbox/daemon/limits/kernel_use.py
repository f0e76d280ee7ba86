"""Kernel objects that no control group limits: sockets, terminals and open files.

What unread data of sockets takes is charged to nobody (control groups of version 1, and Unix sockets in any), terminals
have one limit for the whole host, and so have open files. All three are counted while tool code runs: the watch of the
disk (disk_watch.py) ends everything of it that is past a limit. A buffer has a size that tool code cannot change
(tool_filter.py), so a number of sockets is a bound on bytes.
"""

from __future__ import annotations

import os

# Of a control group without a limit on memory, too.
_SOCKETS_LEAST = 256
_SOCKETS_MOST = 16_384
# The share of the memory limit that sockets may take besides, and what one takes at most: Linux' default for either
# direction, which TCP is held to by net.ipv4.tcp_rmem and tcp_wmem.
_SOCKETS_SHARE = 4
_BUFFER_BYTES = 212_992
TERMINALS_LIMIT = 128
OPEN_FILES_LIMIT = 65_536

_TERMINALS = "/dev/pts"
_PROC = "/proc"


class KernelUse:
    """Looks at what there is. `memory_bytes` is the sandbox's memory limit, 0 for none."""

    def __init__(self, memory_bytes: int, *, proc: str = _PROC, terminals: str = _TERMINALS) -> None:
        fitting = memory_bytes // _SOCKETS_SHARE // _BUFFER_BYTES
        self.sockets_limit = min(max(fitting, _SOCKETS_LEAST), _SOCKETS_MOST)
        self._proc = proc
        self._terminals = terminals
        # The fewest open files of the whole host that were seen since tool code began to run.
        self._least_files: int | None = None

    def begin(self) -> None:
        """Take what others have open now for no growth of this sandbox."""
        self._least_files = None

    def is_past(self) -> bool:
        """Return whether the sandbox has more than it may; what this kernel does not tell is within its limit."""
        return self._sockets() > self.sockets_limit or self._count_terminals() > TERMINALS_LIMIT or self._has_files()

    def _sockets(self) -> int:
        """Return how many sockets of any kind the sandbox's network namespace has, those on their way included."""
        words = self._read("net/sockstat").split(maxsplit=3)
        return int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0

    def _count_terminals(self) -> int:
        try:
            return len(os.listdir(self._terminals))
        except OSError:
            return 0

    def _has_files(self) -> bool:
        """Return whether so many are open here. Counted only when the host, whose number costs nothing, has more."""
        words = self._read("sys/fs/file-nr").split()
        if not words:
            return False
        files = int(words[0])
        self._least_files = min(files, self._least_files if self._least_files is not None else files)
        return files - self._least_files > OPEN_FILES_LIMIT and self._open_files() > OPEN_FILES_LIMIT

    def _open_files(self) -> int:
        return sum(self._of_process(name) for name in os.listdir(self._proc) if name.isdecimal())

    def _of_process(self, pid: str) -> int:
        place = f"{self._proc}/{pid}/fd"
        try:
            # The directory's size is their number since Linux 6.2.
            return os.stat(place).st_size or len(os.listdir(place))
        except OSError:
            return 0  # it has ended, or is the daemon's

    def _read(self, name: str) -> bytes:
        try:
            with open(f"{self._proc}/{name}", "rb", buffering=0) as file:
                return file.read(256)
        except OSError:
            return b""
