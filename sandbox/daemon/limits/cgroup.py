"""The cgroup of this sandbox, version 2 or 1: limits, usage, kills and refusals. 0 means unlimited or unknown."""

import os
import time

_ROOT = "/sys/fs/cgroup"
_V1_UNLIMITED_BYTES = 2**62
# Between the kernel's kill of a process and its reported end.
_LATELY_S = 1.0


class Cgroup:
    """Reads the files of the container's cgroup, mounted at /sys/fs/cgroup."""

    def __init__(self, root: str = _ROOT) -> None:
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
        while now_s - self._observed[0][0] > _LATELY_S:
            self._settled_kills = self._observed.pop(0)[1]
        return kills

    def killed_since(self, before: int) -> bool:
        """Return whether a SIGKILL that just ended a program may be the kernel's, for memory.

        `before` is observe_kills() at its start. The kernel counts for the whole sandbox, so kills that other programs
        observed well before this moment do not count.
        """
        return self.observe_kills() > max(before, self._settled_kills)

    def pids_refused(self) -> int:
        """Return how many processes and threads the kernel has refused for their limit."""
        return _counter(self._pids_events, b"max")

    def _bytes(self, name: str) -> int:
        text = self._read(name).strip()
        value = int(text) if text.isdigit() else 0
        return value if value < _V1_UNLIMITED_BYTES else 0

    def _open(self, name: str) -> int:
        try:
            return os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._root}/{name}") as file:
                return file.read()
        except OSError:
            return ""


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
