"""Validates a daemon's health reply."""

from __future__ import annotations

from sandbox.client import replies
from sandbox.client.process_replies import PID_LIMIT, PROCESSES_LIMIT
from sandbox.errors import DaemonLost
from sandbox.health import DiskCount, Health
from sandbox.v1 import channel_pb2 as pb

# Far above the number of connections that a daemon serves at once.
_CALLS_LIMIT = 65_536


def health_of(reply: pb.HealthReply) -> Health:
    """Return a daemon's health; raises DaemonLost for impossible numbers."""
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
