"""What a tool process is worth to the kernel: it dies first for memory, and waits while the daemon has work.

Anybody may lower its own out-of-memory score again by writing /proc/self/oom_score_adj, and the capability that could
forbid it is one that not every engine has to give. A Landlock domain does: in it no file under /proc can be opened for
writing. Whoever is born in a domain stays in it, and it changes nothing else.
"""

import os
import stat
import struct
from collections.abc import Callable

from sandbox.daemon.supervisor.libc import libc
from sandbox.daemon.supervisor.tool_filter import filter_tool_code

# Above everything the daemon can reach by its size: the kernel adds thousandths of the memory limit to it.
TOOL_OOM_SCORE_ADJ = 800
# A tenth of the daemon's weight on a processor, with room below for `nice`. Between sandboxes the kernel shares
# processors out by control group, so it costs tool code nothing but what the daemon needs.
TOOL_NICE = 10

# The system calls of Landlock have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_REFER = 1 << 13  # moving between directories, which is refused in every domain that does not allow it
_REFER_VERSION = 2


def lower_oom_priority(*, own_filters: bool) -> bool:
    """Take tool code's score, priority, domain and filter, for good; return whether the filter is installed.

    A kernel without Landlock or scores is left as it is, and the posture shows it. Without the filter no tool code may
    be started.
    """
    try:
        # One may always raise one's own.
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
        # Refused to who could gain privileges by a program, which no sandbox lets anybody; the posture tells.
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
        if not stat.S_ISLNK(mode):  # what a link leads to has a rule of its own, or must not be written
            allowed = _WRITE_FILE | _REFER if stat.S_ISDIR(mode) else _WRITE_FILE
            call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
    finally:
        os.close(fd)
