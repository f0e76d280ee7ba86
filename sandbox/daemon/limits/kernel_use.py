"""Kernel objects that no cgroup limits: sockets, terminals and open files.

Unread socket data is not charged to any cgroup (version 1, and Unix sockets in both), and terminals and open files have
one limit for the whole host. All three are counted while tool code runs, and the disk watch (disk_watch.py) kills it
past a limit. Tool code cannot change the size of buffers (tool_filter.py), so the number of sockets bounds their bytes.
"""

from __future__ import annotations

import os

# Also without a memory limit.
_SOCKETS_LEAST = 256
_SOCKETS_MOST = 16_384
# Sockets may take so large a share of the memory limit in addition. A socket takes at most Linux' default for either
# direction, which net.ipv4.tcp_rmem and tcp_wmem enforce for TCP.
_SOCKETS_SHARE = 4
_BUFFER_BYTES = 212_992
TERMINALS_LIMIT = 128
OPEN_FILES_LIMIT = 65_536

_TERMINALS = "/dev/pts"
_PROC = "/proc"


class KernelUse:
    """Counts kernel objects. `memory_bytes` is the sandbox's memory limit, 0 for none."""

    def __init__(self, memory_bytes: int, *, proc: str = _PROC, terminals: str = _TERMINALS) -> None:
        fitting = memory_bytes // _SOCKETS_SHARE // _BUFFER_BYTES
        self.sockets_limit = min(max(fitting, _SOCKETS_LEAST), _SOCKETS_MOST)
        self._proc = proc
        self._terminals = terminals
        # The fewest open files of the whole host since tool code began to run.
        self._least_files: int | None = None

    def begin(self) -> None:
        """Ignore the files that other processes of the host have open now."""
        self._least_files = None

    def is_past(self) -> bool:
        """Return whether the sandbox exceeds a limit; what this kernel does not report counts as within it."""
        return self._sockets() > self.sockets_limit or self._count_terminals() > TERMINALS_LIMIT or self._has_files()

    def _sockets(self) -> int:
        """Return the number of sockets in the sandbox's network namespace, including those in flight."""
        words = self._read("net/sockstat").split(maxsplit=3)
        return int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0

    def _count_terminals(self) -> int:
        try:
            return len(os.listdir(self._terminals))
        except OSError:
            return 0

    def _has_files(self) -> bool:
        """Return whether too many are open, which is counted only if the whole host has more than that."""
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
            # Since Linux 6.2 the directory's size is their number.
            return os.stat(place).st_size or len(os.listdir(place))
        except OSError:
            return 0  # it has ended, or belongs to the daemon

    def _read(self, name: str) -> bytes:
        try:
            with open(f"{self._proc}/{name}", "rb", buffering=0) as file:
                return file.read(256)
        except OSError:
            return b""
