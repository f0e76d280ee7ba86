"""OOM and CPU priority of tool processes: they are killed first for memory, and yield the processor to the daemon.

A process may lower its own OOM score again through /proc/self/oom_score_adj, and not every engine can withhold the
capability for that. A Landlock domain prevents it: no file under /proc can be opened for writing. Children inherit the
domain, which restricts nothing else.
"""

import os

from sandbox.daemon.supervisor.landlock import REFER, REFER_VERSION, WRITE_FILE, landlock_version, restrict

# Above any score of the daemon: the kernel adds its size, in thousandths of the memory limit.
TOOL_OOM_SCORE_ADJ = 800
# A tenth of the daemon's CPU weight, which leaves room for `nice`. Between sandboxes the kernel divides CPU time by
# cgroup, so this costs tool code only what the daemon needs.
TOOL_NICE = 10


def lower_oom_priority() -> None:
    """Set tool code's OOM score and nice value for good; the posture shows whether the kernel lacks what that takes."""
    try:
        # A process may always raise its own score.
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"%d" % TOOL_OOM_SCORE_ADJ)
    except OSError:
        pass
    os.nice(TOOL_NICE)
    _close_proc_to_writers()


def _close_proc_to_writers() -> None:
    """Enter a domain in which no file below /proc can be opened for writing.

    Fails unless no_new_privs is set, which it is in every sandbox; the posture shows it.
    """
    if landlock_version() >= REFER_VERSION:
        allowed = WRITE_FILE | REFER
        restrict(allowed, {b"/" + os.fsencode(name): allowed for name in os.listdir("/") if name != "proc"})
