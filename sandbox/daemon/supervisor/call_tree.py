"""Finds, counts, signals and pauses everything a call started.

A tool process cannot drop a supplementary group: setgroups requires a capability it does not have. So neither setsid
nor a double fork nor ignoring SIGTERM removes a process from its call; /proc shows which processes have the call's
group. Where the daemon cannot assign groups (engines/local), find_with() installs another way to find processes.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator

from sandbox.daemon.supervisor.control_wire import call_of_gid


def kill_calls(is_meant: Callable[[int], bool], reap: Callable[[], None], limit_s: float = 2.0) -> int:
    """SIGKILL everything that such calls started until nothing is left; return how many remain after `limit_s`."""
    # Requires no process or descriptor beyond reading /proc, so it works when those are exhausted.
    deadline = time.monotonic() + limit_s
    pause_s = 0.0002
    while True:
        try:
            alive = signal_calls(is_meant, signal.SIGKILL)
        except OSError:
            alive = 1  # no memory to list /proc; there may be some later
        reap()
        if not alive or time.monotonic() > deadline:
            return alive
        # Killed processes need a moment to die. Only processes that were not killed yet can fork, so repeating until a
        # whole scan finds none wins fork races.
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def signal_calls(is_meant: Callable[[int], bool], number: int) -> int:
    """Signal once everything that such calls started; return how many processes are not dead yet."""
    own_pid = os.getpid()
    alive = 0
    for pid, call in _find():
        if pid == own_pid or not is_meant(call):
            continue
        alive += 1
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return alive


def list_pids() -> Iterator[int]:
    """Return the ids of all visible processes."""
    return map(int, filter(str.isdecimal, os.listdir("/proc")))


def tool_processes() -> Iterator[tuple[int, int, bytes]]:
    """Yield the live processes that calls started, by their pids: (pid, call, /proc/PID/status)."""
    for pid in sorted(list_pids()):
        status = read_status(pid)
        if status is not None and not is_dead(status) and (call := call_of(status)):
            yield pid, call, status


def find_by_group() -> Iterator[tuple[int, int]]:
    """Return the live processes that calls started, each with its call."""
    return ((pid, call) for pid, call, _ in tool_processes())


_find = find_by_group


def find_with(find: Callable[[], Iterator[tuple[int, int]]]) -> None:
    """Replace find_by_group() in this process and the processes it forks."""
    global _find  # noqa: PLW0603 - of the process, set once
    _find = find


def count_living(calls: dict[int, int]) -> Iterator[None]:
    """Count the live processes of each call into `calls`; yields regularly, so the caller can run other tasks."""
    for index, (_, call) in enumerate(_find(), 1):
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


def call_of(status: bytes) -> int:
    """Return the call of a process, given /proc/PID/status; 0 for none."""
    for group in status.partition(b"\nGroups:")[2].partition(b"\n")[0].split():
        if call := call_of_gid(int(group)):
            return call
    return 0


def is_dead(status: bytes) -> bool:
    """Return whether no thread runs: a zombie whose main thread ended may have others."""
    if b"\nState:\tZ" not in status and b"\nState:\tX" not in status:
        return False
    threads = status.partition(b"\nThreads:\t")[2].partition(b"\n")[0]
    return not threads.isdigit() or int(threads) <= 1


_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)


class PausedCalls:
    """The processes that got SIGSTOP, the context switches of each stopped one, and how often others resumed it.

    Tool code may resist: its processes may resume each other, a timer may, and a parent may react to a stopped child.
    Every process that ran nevertheless is detected by its status in /proc.
    """

    def __init__(self) -> None:
        self.signalled: list[int] = []
        self.stopped: dict[int, int] = {}
        self.resumed: dict[int, int] = {}
        self.calls: set[int] = set()

    def clear(self) -> None:
        for kept in (self.signalled, self.stopped, self.resumed, self.calls):
            kept.clear()


def pause_everything(paused: PausedCalls, limit_s: float = 1.0) -> int:
    """Stop everything that calls started; return the number of processes that were not stopped already."""
    # Parents stop before their children, for a shell reports a job that stops. TimeoutError if some processes keep
    # running: processes of one user may resume each other.
    began = time.monotonic()
    pause_s = 0.0002
    before: dict[int, int] | None = None
    # A process that is not stopped yet may fork or resume others, so scan until two scans agree.
    while True:
        moving, stopping = _pause_once(paused)
        past_s = time.monotonic() - began
        # A process that resumes so often is being resumed by others.
        if moving and (past_s > limit_s or max(paused.resumed.values(), default=0) >= 5):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        # A process may take a moment to leave a system call.
        if not moving and before == paused.stopped and (not stopping or past_s > 0.1):
            return len(paused.signalled)
        before = None if moving else dict(paused.stopped)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.005)


def _pause_once(paused: PausedCalls) -> tuple[bool, bool]:
    """Stop what runs; return whether anything ran, and whether anything has yet to leave a system call."""
    signalled = set(paused.signalled)
    moving = stopping = False
    for pid, call, status in tool_processes():
        paused.calls.add(call)
        if b"\nState:\tT" in status:
            paused.stopped[pid] = _switches(status)
            continue
        if pid in signalled and _will_stop(status):
            stopping = True
            continue
        # Not stopped, and SIGSTOP is no longer pending: it got SIGCONT.
        if paused.stopped.pop(pid, None) is not None or (pid in signalled and b"\nShdPnd:\t" in status):
            paused.resumed[pid] = paused.resumed.get(pid, 0) + 1
        moving = True
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        if pid not in signalled:
            paused.signalled.append(pid)
    return moving, stopping


def _will_stop(status: bytes) -> bool:
    """Return whether SIGSTOP is pending until a system call returns, such as a vfork or disk access."""
    pending = status.partition(b"\nShdPnd:\t")[2].partition(b"\n")[0]
    # gVisor does not report pending signals.
    return bool(int(pending, 16) & _SIGSTOP_PENDING) if pending else b"\nState:\tD" in status


def _switches(status: bytes) -> int:
    """Return the number of context switches, 0 where the kernel does not report it (gVisor)."""
    words = status.partition(b"\nvoluntary_ctxt_switches:")[2].split()
    return int(words[0]) + int(words[2]) if len(words) >= 3 else 0


def resume(paused: PausedCalls) -> int:
    """Resume what pause_everything() stopped, children before parents; return how many processes ran meanwhile."""
    try:
        ran = _ran_meanwhile(paused)
    except OSError:  # no memory to scan /proc, say; the processes must be resumed all the same
        ran = len(paused.signalled)
    for pid in reversed(paused.signalled):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
    paused.clear()
    return ran


def _ran_meanwhile(paused: PausedCalls) -> int:
    """Count the processes that ran while paused: a timer may resume a process, which may then stop itself again."""
    signalled = set(paused.signalled)
    count = 0
    for pid, call, status in tool_processes():
        if call not in paused.calls:
            continue  # it began meanwhile
        if b"\nState:\tT" in status:
            # A process may appear stopped a moment before it leaves its processor, which it may do twice.
            ran = _switches(status) - paused.stopped.get(pid, _switches(status)) > 2
        else:
            ran = pid not in signalled or not _will_stop(status)
        count += ran
    return count
