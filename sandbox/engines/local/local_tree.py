"""Finds what a sandbox has started on a machine where its user may give no process a group.

All of it is below the sandbox's first process (local_daemon.py), which leads a session and takes in orphans. What is in
that session is the daemon itself. Tool processes have sessions of their own, and a variable in their environment says
of which call they are. One that cleared it is of its parent's call, and of STRAYS once it is an orphan. Nothing else of
the machine is looked at twice, so nothing else is ever signalled.
"""

from __future__ import annotations

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
    """Yield what is below a process, with its call; 0 for the daemon, and for what it starts until that has begun."""
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
    """Return the call that a process' environment names, 0 for none; also for one that this user may not look into."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return 0
    said = (b"\0" + environment).partition(b"\0" + call_mark(top))[2].partition(b"\0")[0]
    return int(said) if said.isdigit() and int(said) < CALL_NUMBERS else 0
