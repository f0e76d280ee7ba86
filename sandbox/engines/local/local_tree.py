"""Finds the processes of a sandbox by descent, where the daemon cannot give them a supplementary group.

All of them descend from the sandbox's first process (local_daemon.py), a session leader and subreaper. Its session is
the daemon. Tool processes have their own sessions, and an environment variable names their call. A process that cleared
it belongs to its parent's call, and to STRAYS once it is an orphan. Other processes are never signalled.
"""

import os
from collections.abc import Iterator

from sandbox.daemon.supervisor.call_tree import is_dead, list_pids, read_status
from sandbox.daemon.supervisor.control_wire import CALL_NUMBERS
from sandbox.daemon.supervisor.launch import call_mark

# No call has this number (spawner.py).
STRAYS = CALL_NUMBERS


def find_by_descent() -> Iterator[tuple[int, int]]:
    """Yield the living tool processes below the leader of this session, each with its call."""
    top = os.getsid(0)
    return ((pid, call) for pid, call in _below(top) if call)


def descendants(top: int) -> list[int]:
    """Return the living processes below one that leads a session."""
    return [pid for pid, _ in _below(top)]


def _below(top: int) -> Iterator[tuple[int, int]]:
    """Yield the descendants of a process, with their calls; 0 for the daemon and what has not started yet."""
    children: dict[bytes, list[int]] = {}
    for pid in list_pids():
        status = read_status(pid)
        if status is not None and not is_dead(status):
            parent_pid = status.partition(b"\nPPid:\t")[2].partition(b"\n")[0]
            children.setdefault(parent_pid, []).append(pid)
    waiting = [(top, 0)]
    while waiting:
        parent, call_above = waiting.pop()
        for pid in children.get(b"%d" % parent, ()):
            call = 0 if _session(pid) == top else _marked(pid, top) or call_above or (STRAYS if parent == top else 0)
            yield pid, call
            waiting.append((pid, call))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # it has ended


def _marked(pid: int, top: int) -> int:
    """Return the call that a process' environment names, 0 for none or if the environment is not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return 0
    said = (b"\0" + environment).partition(b"\0" + call_mark(top))[2].partition(b"\0")[0]
    return int(said) if said.isdigit() and int(said) < CALL_NUMBERS else 0
