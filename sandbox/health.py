"""How a sandbox's daemon says it is: its word, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox import replies
from sandbox.errors import DaemonLost
from sandbox.process_replies import PID_LIMIT, PROCESSES_LIMIT
from sandbox.v1 import channel_pb2 as pb

# Far past the connections that a daemon serves at once.
_CALLS_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class DiskCount:
    """What so many files and directories take of the disk; `partial` says that there are more."""

    size_bytes: int
    files: int
    partial: bool


@dataclass(frozen=True, slots=True)
class Health:
    """What the daemon counts since it began to listen, `uptime_s` ago.

    `calls` in flight, the one that asked included; background `processes` that run; `pids` (processes and threads) and
    `memory_bytes` of the whole sandbox, 0 when unknown; `memory_kills` and `pids_refused` by the kernel. What files
    take in the `workspace` and in `tmp` is None where that was not asked for, or is not known.
    """

    uptime_s: float
    calls: int
    processes: int
    pids: int
    memory_bytes: int
    memory_kills: int
    pids_refused: int
    workspace: DiskCount | None = None
    tmp: DiskCount | None = None


def health_of(reply: pb.HealthReply) -> Health:
    """Return what a daemon says; raises DaemonLost for figures that none can have."""
    if not 1 <= reply.calls <= _CALLS_LIMIT or reply.processes > PROCESSES_LIMIT or reply.pids > PID_LIMIT:
        raise DaemonLost("the sandbox daemon counts calls or processes that it cannot have")
    return Health(
        uptime_s=replies.count(reply.uptime_ms) / 1000,
        calls=reply.calls,
        processes=reply.processes,
        pids=reply.pids,
        memory_bytes=replies.count(reply.memory_bytes),
        memory_kills=replies.count(reply.memory_kills),
        pids_refused=replies.count(reply.pids_refused),
        workspace=_disk(reply.workspace) if reply.HasField("workspace") else None,
        tmp=_disk(reply.tmp) if reply.HasField("tmp") else None,
    )


def _disk(counted: pb.DiskCount) -> DiskCount:
    return DiskCount(replies.count(counted.size_bytes), replies.count(counted.files), counted.partial)
