"""Holding still everything that calls started, for as long as what they have written is counted.

Tool code may try to go on: its processes may have each other go on, a timer may, and a parent may tell of a child that
stops. Who went on nevertheless is found, by what the kernel says of each.
"""

import errno
import os
import signal
import time

from sandbox.daemon.supervisor.call_tree import call_of, is_dead, list_pids, read_status

HOLD_LIMIT_S = 1.0
_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)
# Who goes on so often although it was stopped is set going by others.
_GOING_ON_LIMIT = 5
# A system call may take so long to come out of before it is let be.
_STOPPING_LIMIT_S = 0.1
# So often may who is stopped leave its processor.
_SWITCHES_MOST = 2


class Hold:
    """What is held: whom SIGSTOP was sent to; who is stopped, and how often it had left its processor."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.stopped: dict[int, int] = {}
        self.going_on: dict[int, int] = {}
        self.calls: set[int] = set()

    def clear(self) -> None:
        """Hold nothing any more."""
        for kept in (self.sent, self.stopped, self.going_on, self.calls):
            kept.clear()


def hold_everything(hold: Hold, limit_s: float = HOLD_LIMIT_S) -> int:
    """Stop everything that calls started; return how many of these were not stopped already.

    A parent is stopped before its children, for a shell tells of a job that stops. TimeoutError when some go on
    nevertheless: processes of one user may have each other go on.
    """
    began = time.monotonic()
    pause_s = 0.0002
    before: dict[int, int] | None = None
    # Who was not stopped yet may have made new ones, or have had others go on: until two scans find the same.
    while True:
        moving, stopping = _hold_once(hold)
        past_s = time.monotonic() - began
        if moving and (past_s > limit_s or max(hold.going_on.values(), default=0) >= _GOING_ON_LIMIT):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if not moving and before == hold.stopped and (not stopping or past_s > _STOPPING_LIMIT_S):
            return len(hold.sent)
        before = None if moving else dict(hold.stopped)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.005)


def _hold_once(hold: Hold) -> tuple[bool, bool]:
    """Stop what is not stopped; return whether there was any, and whether any has yet to come out of a system call."""
    sent = set(hold.sent)
    moving = stopping = False
    for pid in sorted(list_pids()):
        status = read_status(pid)
        if status is None or is_dead(status) or not (call := call_of(status)):
            continue
        hold.calls.add(call)
        if b"\nState:\tT" in status:
            hold.stopped[pid] = _switches(status)
            continue
        if pid in sent and _will_stop(status):
            stopping = True
            continue
        # One that is not stopped, and has no SIGSTOP before it any more, was sent SIGCONT.
        if hold.stopped.pop(pid, None) is not None or (pid in sent and b"\nShdPnd:\t" in status):
            hold.going_on[pid] = hold.going_on.get(pid, 0) + 1
        moving = True
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        if pid not in sent:
            hold.sent.append(pid)
    return moving, stopping


def _will_stop(status: bytes) -> bool:
    """Return whether a process that was sent SIGSTOP has it before it, once a system call lets it: a vfork, a disk."""
    pending = status.partition(b"\nShdPnd:\t")[2].partition(b"\n")[0]
    # gVisor does not say what is pending.
    return bool(int(pending, 16) & _SIGSTOP_PENDING) if pending else b"\nState:\tD" in status


def _switches(status: bytes) -> int:
    """Return how often a process has left its processor, 0 where the kernel does not say (gVisor)."""
    said = status.partition(b"\nvoluntary_ctxt_switches:")[2].split()
    return int(said[0]) + int(said[2]) if len(said) >= 3 else 0


def release(hold: Hold) -> int:
    """Have what hold_everything() stopped go on, children before their parents; return how many did so before."""
    try:
        gone_on = _gone_on(hold)
    except OSError:  # no memory to look with, say; whoever was stopped goes on all the same
        gone_on = len(hold.sent)
    for pid in reversed(hold.sent):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
    hold.clear()
    return gone_on


def _gone_on(hold: Hold) -> int:
    """Return how many ran while they were held: a timer may have a process go on, too, and it may stop itself again."""
    sent = set(hold.sent)
    count = 0
    for pid in list_pids():
        status = read_status(pid)
        # Calls that began meanwhile are nothing to go by.
        if status is None or is_dead(status) or call_of(status) not in hold.calls:
            continue
        if b"\nState:\tT" in status:
            # One may be seen stopped a moment before it leaves its processor.
            ran = _switches(status) - hold.stopped.get(pid, _switches(status)) > _SWITCHES_MOST
        else:
            ran = pid not in sent or not _will_stop(status)
        count += ran
    return count
