"""Finding and killing everything a call started.

A tool process cannot drop a supplementary group: setgroups needs a capability it does not have. So neither setsid nor a
double fork nor ignoring SIGTERM takes a process out of its call; /proc tells who carries the call's group.
"""

import os
import signal
import time
from collections.abc import Callable

KILL_LIMIT_S = 2.0


def kill_call_tree(gid: int, reap: Callable[[], None], limit_s: float = KILL_LIMIT_S) -> int:
    """SIGKILL every process with the supplementary group until none is left; return how many are after `limit_s`."""
    deadline = time.monotonic() + limit_s
    pause_s = 0.0002
    while True:
        alive = _kill_once(gid)
        reap()
        if not alive or time.monotonic() > deadline:
            return alive
        # Killed processes need a moment to die. New ones can only come from those that were not killed yet, so going on
        # until a whole scan finds nobody ends fork races.
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def _kill_once(gid: int) -> int:
    """Signal every member; return how many are not dead yet."""
    own_pid = os.getpid()
    alive = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == own_pid:
            continue
        status = _read_status(name)
        if status is None or not has_group(status, gid):
            continue
        if not is_dead(status):
            alive += 1
            try:
                os.kill(int(name), signal.SIGKILL)
            except ProcessLookupError:
                pass
    return alive


def _read_status(pid: str) -> bytes | None:
    try:
        fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 8192)
    except OSError:
        return None
    finally:
        os.close(fd)


def has_group(status: bytes, gid: int) -> bool:
    """Return whether the text of /proc/PID/status names the supplementary group."""
    _, found, rest = status.partition(b"\nGroups:")
    return bool(found) and b"%d" % gid in rest.partition(b"\n")[0].split()


def is_dead(status: bytes) -> bool:
    """Return whether nothing runs any more: a zombie whose main thread left other threads behind still does."""
    if b"\nState:\tZ" not in status and b"\nState:\tX" not in status:
        return False
    threads = status.partition(b"\nThreads:\t")[2].partition(b"\n")[0]
    return not threads.isdigit() or int(threads) <= 1
