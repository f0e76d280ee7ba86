"""OOM and CPU priority of tool processes: they are killed first for memory, and yield the processor to the daemon.

A process may lower its own OOM score again through /proc/self/oom_score_adj, and not every engine can withhold the
capability for that. A Landlock domain prevents it: no file under /proc can be opened for writing. Children inherit the
domain, which restricts nothing else.
"""

import os
import stat
import struct
from collections.abc import Callable

from sandbox.daemon.supervisor.libc import libc
from sandbox.daemon.supervisor.tool_filter import filter_tool_code

# Above any score of the daemon: the kernel adds its size, in thousandths of the memory limit.
TOOL_OOM_SCORE_ADJ = 800
# A tenth of the daemon's CPU weight, which leaves room for `nice`. Between sandboxes the kernel divides CPU time by
# cgroup, so this costs tool code only what the daemon needs.
TOOL_NICE = 10

# The system calls of Landlock have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_REFER = 1 << 13  # moving between directories, which is refused in every domain that does not allow it
_REFER_VERSION = 2


def lower_oom_priority(*, own_filters: bool) -> bool:
    """Set tool code's OOM score, nice value, Landlock domain and filter for good; return whether it is filtered.

    The posture shows whether the kernel lacks Landlock or OOM scores. Without the filter no tool code may start.
    """
    try:
        # A process may always raise its own score.
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"%d" % TOOL_OOM_SCORE_ADJ)
    except OSError:
        pass
    os.nice(TOOL_NICE)
    call = libc()
    if call is not None:
        _close_proc_to_writers(call)
    return filter_tool_code(own_filters=own_filters)


def _close_proc_to_writers(call: Callable[..., int]) -> None:
    if call("syscall", _CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION) < _REFER_VERSION:
        return
    handled = struct.pack("=Q", _WRITE_FILE | _REFER)
    ruleset = call("syscall", _CREATE_RULESET, handled, len(handled), 0)
    if ruleset < 0:
        return
    try:
        for name in os.listdir("/"):
            if name != "proc":
                _allow(call, ruleset, f"/{name}")
        # Fails unless no_new_privs is set, which it is in every sandbox; the posture shows it.
        call("syscall", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(call: Callable[..., int], ruleset: int, path: str) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISLNK(mode):  # its target has a rule of its own, or must not be written
            allowed = _WRITE_FILE | _REFER if stat.S_ISDIR(mode) else _WRITE_FILE
            call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
    finally:
        os.close(fd)
