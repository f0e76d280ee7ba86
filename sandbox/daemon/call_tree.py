"""Finding, counting and signalling everything a call started.

A tool process cannot drop a supplementary group: setgroups needs a capability it does not have. So neither setsid nor a
double fork nor ignoring SIGTERM takes a process out of its call; /proc tells who carries the call's group.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator

from sandbox.daemon.control_wire import call_gid, call_of_gid

KILL_LIMIT_S = 2.0
HOLD_LIMIT_S = 1.0
_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)
# Who goes on so often although it was stopped is set going by others.
_GOING_ON_LIMIT = 5
# A system call may take so long to come out of before it is let be.
_STOPPING_LIMIT_S = 0.1
# So often may who is stopped leave its processor.
_SWITCHES_MOST = 2


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
    for pid in sorted(_pids()):
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
    gone_on = _gone_on(hold)
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
    for pid in _pids():
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
    for pid in _pids():
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


def _pids() -> Iterator[int]:
    return map(int, filter(str.isdecimal, os.listdir("/proc")))


def count_living(calls: dict[int, int]) -> Iterator[None]:
    """Count the living processes of each call into `calls`; yields now and then, for others to have their turn."""
    for index, pid in enumerate(_pids(), 1):
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
