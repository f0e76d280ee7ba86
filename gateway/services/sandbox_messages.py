"""The messages of SandboxService."""

from __future__ import annotations

from dataclasses import asdict

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.sandboxes.sandbox_usage import Disk, SandboxStats
from gateway.services.messages import message, numbers, timestamp
from gateway.storage.transition_store import StoredTransition
from gateway.v1 import sandbox_service_pb2 as pb
from sandbox.sandbox import ListedSandbox

_STATES = numbers(pb.SandboxState, "SANDBOX_STATE_")
_NAMES = {number: name for name, number in _STATES.items()}


def sandbox_message(one: ListedSandbox, calls: int, ends_s: float | None) -> pb.Sandbox:
    """Return a sandbox with `calls` under way here; `ends_s` is when it is stopped or, once stopped, removed."""
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
    """Return a transition."""
    return message(pb.SandboxTransition, one, sandbox_id=one.sandbox, state=_STATES[one.state])


def stats_message(stats: SandboxStats) -> pb.SandboxStats:
    """Return what a sandbox uses; unknown values are not set."""
    sandbox, usage = stats.sandbox, asdict(stats.usage)
    disks = {"workspace": _disk(stats.workspace), "tmp": _disk(stats.tmp)}
    return message(
        pb.SandboxStats, stats, id=sandbox.id, thread=sandbox.thread, runtime=sandbox.runtime, **usage, **disks
    )


def state_of(number: int) -> str:
    """Return the name of a state; "" for none."""
    return _NAMES.get(number, "")


def _moment(at_s: float | None) -> Timestamp | None:
    return None if at_s is None else timestamp(round(at_s * 1_000_000))


def _disk(disk: Disk | None) -> pb.DiskStats | None:
    return None if disk is None else message(pb.DiskStats, disk)
