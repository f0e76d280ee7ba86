"""Pauses everything that calls started, while what they have written is counted.

Tool code may resist: its processes may resume each other, a timer may, and a parent may react to a stopped child. Every
process that ran nevertheless is detected by its status in /proc.
"""

import errno
import os
import signal
import time

from sandbox.daemon.supervisor.call_tree import call_of, is_dead, list_pids, read_status

PAUSE_LIMIT_S = 1.0
_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)
# A process that resumes so often is being resumed by others.
_RESUMED_LIMIT = 5
# How long to wait for a process to leave a system call.
_STOPPING_LIMIT_S = 0.1
# A stopped process may still leave its processor so often.
_SWITCHES_MOST = 2


class PausedCalls:
    """The processes that got SIGSTOP, the context switches of each stopped one, and how often others resumed it."""

    def __init__(self) -> None:
        self.signalled: list[int] = []
        self.stopped: dict[int, int] = {}
        self.resumed: dict[int, int] = {}
        self.calls: set[int] = set()

    def clear(self) -> None:
        for kept in (self.signalled, self.stopped, self.resumed, self.calls):
            kept.clear()


def pause_everything(paused: PausedCalls, limit_s: float = PAUSE_LIMIT_S) -> int:
    """Stop everything that calls started; return the number of processes that were not stopped already.

    Parents stop before their children, for a shell reports a job that stops. TimeoutError if some processes keep
    running: processes of one user may resume each other.
    """
    began = time.monotonic()
    pause_s = 0.0002
    before: dict[int, int] | None = None
    # A process that is not stopped yet may fork or resume others, so scan until two scans agree.
    while True:
        moving, stopping = _pause_once(paused)
        past_s = time.monotonic() - began
        if moving and (past_s > limit_s or max(paused.resumed.values(), default=0) >= _RESUMED_LIMIT):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if not moving and before == paused.stopped and (not stopping or past_s > _STOPPING_LIMIT_S):
            return len(paused.signalled)
        before = None if moving else dict(paused.stopped)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.005)


def _pause_once(paused: PausedCalls) -> tuple[bool, bool]:
    """Stop what runs; return whether anything ran, and whether anything has yet to leave a system call."""
    signalled = set(paused.signalled)
    moving = stopping = False
    for pid in sorted(list_pids()):
        status = read_status(pid)
        if status is None or is_dead(status) or not (call := call_of(status)):
            continue
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
    for pid in list_pids():
        status = read_status(pid)
        # Calls that began meanwhile do not count.
        if status is None or is_dead(status) or call_of(status) not in paused.calls:
            continue
        if b"\nState:\tT" in status:
            # A process may appear stopped a moment before it leaves its processor.
            ran = _switches(status) - paused.stopped.get(pid, _switches(status)) > _SWITCHES_MOST
        else:
            ran = pid not in signalled or not _will_stop(status)
        count += ran
    return count
