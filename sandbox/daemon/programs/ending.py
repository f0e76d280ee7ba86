"""The outcome of a program: how it ended, or why the daemon or the kernel killed it."""

from __future__ import annotations

import os
import signal

from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.supervisor.spawner import Process
from sandbox.v1 import channel_pb2 as wire

_SHELL_SIGKILL_STATUS = 128 + signal.SIGKILL


def outcome_of(process: Process, cgroup: Cgroup, kills_before: int, *, killed_by_caller: bool = False) -> wire.Outcome:
    """Return the outcome of an ended process; `kills_before` is what observe_kills() returned at its start."""
    status = process.ended.result()
    signalled = os.WIFSIGNALED(status)
    # A shell exits with this status if the program it ran was killed.
    killed = os.WTERMSIG(status) == signal.SIGKILL if signalled else os.WEXITSTATUS(status) == _SHELL_SIGKILL_STATUS
    out_of_memory = cgroup.killed_since(kills_before)  # at every end, so that the next one is judged correctly
    if killed and process.past_disk:
        return wire.OUTCOME_DISK_LIMIT
    if killed and (process.past_kernel or (out_of_memory and not killed_by_caller)):
        return wire.OUTCOME_OUT_OF_MEMORY
    return wire.OUTCOME_SIGNALLED if signalled else wire.OUTCOME_EXITED
