"""The messages of SandboxService."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.sandboxes.sandbox_usage import Disk, SandboxStats
from gateway.storage.transition_store import StoredTransition
from gateway.v1 import sandbox_service_pb2 as pb
from sandbox.sandbox import ListedSandbox

_STATES = {
    "creating": pb.SANDBOX_STATE_CREATING,
    "running": pb.SANDBOX_STATE_RUNNING,
    "idle_stopped": pb.SANDBOX_STATE_IDLE_STOPPED,
    "failed": pb.SANDBOX_STATE_FAILED,
    "removed": pb.SANDBOX_STATE_REMOVED,
}
_NAMES = {int(number): name for name, number in _STATES.items()}


def sandbox_message(one: ListedSandbox, calls: int, ends_s: float | None) -> pb.Sandbox:
    """Return a sandbox; `calls` are under way in it here, and `ends_s` is when it is stopped, or a stopped one goes."""
    stopped = one.state == "idle_stopped"
    since, ends = _moment(one.since_s), _moment(ends_s)
    return pb.Sandbox(
        id=one.id,
        thread=one.thread,
        image=one.image,
        runtime=one.runtime,
        created_at=_moment(one.created_s),
        calls=calls,
        state=_STATES[one.state],
        idle_since=None if stopped else since,
        stops_at=None if stopped else ends,
        stopped_since=since if stopped else None,
        removes_at=ends if stopped else None,
    )


def transition_message(one: StoredTransition) -> pb.SandboxTransition:
    """Return what became of a sandbox."""
    return pb.SandboxTransition(
        id=one.id,
        thread=one.thread,
        sandbox_id=one.sandbox,
        state=_STATES[one.state],
        reason=one.reason,
        at=_moment(one.at_us / 1_000_000),
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


def state_of(number: int) -> str:
    """Return what a state is called here; "" for none, or one that nothing is in."""
    return _NAMES.get(number, "")


def _moment(at_s: float | None) -> Timestamp | None:
    if at_s is None:
        return None
    moment = Timestamp()
    moment.FromMicroseconds(round(at_s * 1_000_000))
    return moment


def _disk(disk: Disk | None) -> pb.DiskStats | None:
    if disk is None:
        return None
    return pb.DiskStats(used_bytes=disk.used_bytes, partial=disk.partial, limit_bytes=disk.limit_bytes)
