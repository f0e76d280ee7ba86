"""Finding, counting and signalling everything a call started.

A tool process cannot drop a supplementary group: setgroups needs a capability it does not have. So neither setsid nor a
double fork nor ignoring SIGTERM takes a process out of its call; /proc tells who carries the call's group.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator

from sandbox.daemon.supervisor.control_wire import call_gid, call_of_gid

KILL_LIMIT_S = 2.0


def kill_call_tree(call: int, reap: Callable[[], None], limit_s: float = KILL_LIMIT_S) -> int:
    """SIGKILL everything the call started until nothing is left; return how many processes are after `limit_s`."""
    gid = call_gid(call)
    return _kill_all(lambda status: has_group(status, gid), reap, limit_s)


def kill_strays(kept_calls: frozenset[int], reap: Callable[[], None], limit_s: float = KILL_LIMIT_S) -> int:
    """SIGKILL what calls started but for `kept_calls`; return how many processes are left after `limit_s`.

    Needs neither a process nor a descriptor more than reading /proc does, for it is the way out when there are none.
    """

    def is_stray(status: bytes) -> bool:
        call = call_of(status)
        return call != 0 and call not in kept_calls

    return _kill_all(is_stray, reap, limit_s)


def signal_call_tree(call: int, number: int) -> int:
    """Send a signal once to everything the call started; return to how many processes it went."""
    gid = call_gid(call)
    return _signal_once(lambda status: has_group(status, gid), number)


def _kill_all(is_member: Callable[[bytes], bool], reap: Callable[[], None], limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    pause_s = 0.0002
    while True:
        try:
            alive = _signal_once(is_member, signal.SIGKILL)
        except OSError:
            alive = 1  # no memory to list /proc with; it may come back
        reap()
        if not alive or time.monotonic() > deadline:
            return alive
        # Killed processes need a moment to die. New ones can only come from those that were not killed yet, so going on
        # until a whole scan finds nobody ends fork races.
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def _signal_once(is_member: Callable[[bytes], bool], number: int) -> int:
    """Signal every member; return how many are not dead yet."""
    own_pid = os.getpid()
    alive = 0
    for pid in list_pids():
        if pid == own_pid:
            continue
        status = read_status(pid)
        if status is None or is_dead(status) or not is_member(status):
            continue
        alive += 1
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return alive


def list_pids() -> Iterator[int]:
    """Return the ids of the processes that are seen here."""
    return map(int, filter(str.isdecimal, os.listdir("/proc")))


def count_living(calls: dict[int, int]) -> Iterator[None]:
    """Count the living processes of each call into `calls`; yields now and then, for others to have their turn."""
    for index, pid in enumerate(list_pids(), 1):
        status = read_status(pid)
        if status is not None and not is_dead(status) and (call := call_of(status)):
            calls[call] = calls.get(call, 0) + 1
        if index % 64 == 0:
            yield


def read_status(pid: int) -> bytes | None:
    """Return the text of /proc/PID/status, None when the process is gone."""
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


def _groups(status: bytes) -> list[bytes]:
    return status.partition(b"\nGroups:")[2].partition(b"\n")[0].split()


def has_group(status: bytes, gid: int) -> bool:
    """Return whether the text of /proc/PID/status names the supplementary group."""
    return b"%d" % gid in _groups(status)


def call_of(status: bytes) -> int:
    """Return the call that the text of /proc/PID/status puts a process in, 0 for none."""
    for group in _groups(status):
        if call := call_of_gid(int(group)):
            return call
    return 0


def is_dead(status: bytes) -> bool:
    """Return whether nothing runs any more: a zombie whose main thread left other threads behind still does."""
    if b"\nState:\tZ" not in status and b"\nState:\tX" not in status:
        return False
    threads = status.partition(b"\nThreads:\t")[2].partition(b"\n")[0]
    return not threads.isdigit() or int(threads) <= 1
