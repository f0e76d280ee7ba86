"""The daemon's health, from its own state and a few small kernel files, whatever tool code does."""

from __future__ import annotations

import time

from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.limits.disk_use import DiskUse
from sandbox.v1 import channel_pb2 as wire


class Health:
    """Records when the server began to listen, and counts calls in flight."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.calls = 0
        self._cgroup = cgroup
        self._listening_since_ns = time.monotonic_ns()

    def reply(self, processes: int, workspace: DiskUse | None = None, tmp: DiskUse | None = None) -> wire.Reply:
        """Return the answer, with the number of running background processes and disk usage."""
        return wire.Reply(
            health=wire.HealthReply(
                uptime_ms=(time.monotonic_ns() - self._listening_since_ns) // 1_000_000,
                calls=self.calls,
                processes=processes,
                pids=self._cgroup.pids(),
                memory_bytes=self._cgroup.memory_bytes(),
                memory_kills=self._cgroup.memory_kills(),
                pids_refused=self._cgroup.pids_refused(),
                workspace=_disk_count(workspace),
                tmp=_disk_count(tmp),
            )
        )


def _disk_count(use: DiskUse | None) -> wire.DiskCount | None:
    if use is None:
        return None
    return wire.DiskCount(size_bytes=int(use.size_bytes), files=use.files, partial=use.hidden)
