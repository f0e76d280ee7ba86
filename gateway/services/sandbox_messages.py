"""The messages of SandboxService."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.sandbox_usage import Disk, SandboxStats
from gateway.storage.transition_store import StoredTransition
from gateway.v1 import sandbox_service_pb2 as pb
from sandbox.engine import LiveSandbox


def sandbox_message(one: LiveSandbox, calls: int) -> pb.Sandbox:
    """Return a sandbox; `calls` are under way in it here."""
    created = Timestamp()
    created.FromSeconds(int(one.created_s))
    return pb.Sandbox(
        id=one.id, thread=one.thread, image=one.image, runtime=one.runtime, created_at=created, calls=calls
    )


def transition_message(one: StoredTransition) -> pb.SandboxTransition:
    """Return what became of a sandbox."""
    at = Timestamp()
    at.FromMicroseconds(one.at_us)
    return pb.SandboxTransition(
        thread=one.thread,
        sandbox_id=one.sandbox,
        state=f"SANDBOX_STATE_{one.state.upper()}",
        reason=one.reason,
        at=at,
        engine=one.engine,
    )


def stats_message(stats: SandboxStats) -> pb.SandboxStats:
    """Return what a sandbox uses; what is None is not set."""
    usage = stats.usage
    return pb.SandboxStats(
        id=stats.sandbox.id,
        thread=stats.sandbox.thread,
        runtime=stats.sandbox.runtime,
        calls=stats.calls,
        cpu_s=usage.cpu_s,
        cpus=stats.cpus,
        cpus_limit=stats.cpus_limit,
        memory_bytes=usage.memory_bytes,
        memory_limit_bytes=usage.memory_limit_bytes,
        memory_peak_bytes=usage.memory_peak_bytes,
        pids=usage.pids,
        pids_limit=usage.pids_limit,
        workspace=_disk(stats.workspace),
        tmp=_disk(stats.tmp),
    )


def _disk(disk: Disk | None) -> pb.DiskStats | None:
    if disk is None:
        return None
    return pb.DiskStats(used_bytes=disk.used_bytes, partial=disk.partial, limit_bytes=disk.limit_bytes)
