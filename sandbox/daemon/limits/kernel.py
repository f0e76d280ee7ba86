"""What the kernel counts and limits in this sandbox: its cgroup, and objects that no cgroup limits."""

import os
import time

# gVisor's kernel reported this version for years, and has its name in the release since.
_GVISOR_VERSION = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


def is_gvisor(release: str, version: str) -> bool:
    """Return whether this is gVisor's kernel, by uname."""
    return "gvisor" in release or version == _GVISOR_VERSION or os.path.exists("/proc/sentry-meminfo")


def read_if_there(path: str) -> bytes:
    """Return the content of a kernel's file, b"" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


class Cgroup:
    """The cgroup at /sys/fs/cgroup, version 2 or 1: limits, usage, kills, refusals. 0 means unlimited or unknown."""

    def __init__(self, root: str = "/sys/fs/cgroup") -> None:
        self._root = root
        self._unified = os.path.exists(f"{root}/cgroup.controllers")
        # Kept open, as every call reads them twice.
        self._memory_events = self._open("memory.events" if self._unified else "memory/memory.oom_control")
        self._observed: list[tuple[float, int]] = []  # when, and how many kills there were
        self._settled_kills = 0
        self._pids_events = self._open("pids.events" if self._unified else "pids/pids.events")

    def memory_limit_bytes(self) -> int:
        return self._bytes("memory.max" if self._unified else "memory/memory.limit_in_bytes")

    def memory_swap_limit_bytes(self) -> int:
        if not self._unified:
            return self._bytes("memory/memory.memsw.limit_in_bytes")
        memory = self._read("memory.max").strip()
        swap = self._read("memory.swap.max").strip()
        return int(memory) + int(swap) if memory.isdigit() and swap.isdigit() else 0

    def pids_limit(self) -> int:
        return self._bytes("pids.max" if self._unified else "pids/pids.max")

    def cpu_limit_millis(self) -> int:
        if self._unified:
            quota, _, period = self._read("cpu.max").strip().partition(" ")
        else:
            quota, period = (self._read(f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        return int(quota) * 1000 // int(period) if quota.isdigit() and period.isdigit() and int(period) else 0

    def memory_bytes(self) -> int:
        return self._bytes("memory.current" if self._unified else "memory/memory.usage_in_bytes")

    def pids(self) -> int:
        return self._bytes("pids.current" if self._unified else "pids/pids.current")

    def memory_kills(self) -> int:
        return _counter(self._memory_events, b"oom_kill")

    def observe_kills(self) -> int:
        """Return memory_kills() and record the time. Called at the start and end of every program."""
        now_s, kills = time.monotonic(), self.memory_kills()
        self._observed.append((now_s, kills))
        # The kernel's kill of a process comes before its reported end, by less than so long.
        while now_s - self._observed[0][0] > 1.0:
            self._settled_kills = self._observed.pop(0)[1]
        return kills

    def killed_since(self, before: int) -> bool:
        """Return whether a SIGKILL that just ended a program may be the kernel's, for memory."""
        # `before` is observe_kills() at its start. The kernel counts for the whole sandbox, so kills that other
        # programs observed well before this moment do not count.
        return self.observe_kills() > max(before, self._settled_kills)

    def pids_refused(self) -> int:
        return _counter(self._pids_events, b"max")

    def _bytes(self, name: str) -> int:
        text = self._read(name).strip()
        value = int(text) if text.isdigit() else 0
        return value if value < 2**62 else 0  # version 1 says so for no limit

    def _open(self, name: str) -> int:
        try:
            return os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    def _read(self, name: str) -> str:
        return read_if_there(f"{self._root}/{name}").decode()


def _counter(fd: int, name: bytes) -> int:
    """Return the number after a name at the start of a line."""
    if fd < 0:
        return 0
    try:
        text = os.pread(fd, 4096, 0)
    except OSError:
        return 0
    for line in text.splitlines():
        found, _, value = line.partition(b" ")
        if found == name and value.isdigit():
            return int(value)
    return 0


TERMINALS_LIMIT = 128
OPEN_FILES_LIMIT = 65_536


class KernelUse:
    """Counts sockets, terminals and open files. `memory_bytes` is the sandbox's memory limit, 0 for none.

    Unread socket data is not charged to any cgroup (version 1, and Unix sockets in both), and terminals and open files
    have one limit for the whole host. All three are counted while tool code runs, and the disk watch (disk_watch.py)
    kills it past a limit. Tool code cannot change the size of buffers (tool_filter.py), so the number of sockets bounds
    their bytes.
    """

    def __init__(self, memory_bytes: int, *, proc: str = "/proc", terminals: str = "/dev/pts") -> None:
        # Sockets may take a quarter of the memory limit in addition; there are at least 256, also without a limit, and
        # 16,384 at most. A socket takes at most Linux' default for either direction, which net.ipv4.tcp_rmem and
        # tcp_wmem enforce for TCP.
        self.sockets_limit = min(max(memory_bytes // 4 // 212_992, 256), 16_384)
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
        return read_if_there(f"{self._proc}/{name}")
