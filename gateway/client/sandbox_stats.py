"""What sandboxes use, as the Python client has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.v1 import sandbox_service_pb2 as pb


@dataclass(frozen=True)
class DiskStats:
    """What files take of the disk, in bytes; `partial`: there are more. `limit_bytes` is None where unknown."""

    used_bytes: int
    partial: bool
    limit_bytes: int | None


@dataclass(frozen=True)
class SandboxStats:
    """What a sandbox uses. None is unknown, and never zero.

    `cpu_s` is processor time since it began, `cpus` how many processors it used since the reading before. The memory
    has the files in /tmp in it. `calls` are under way in it on the gateway that answered.
    """

    id: str
    thread: str
    runtime: str
    calls: int
    cpu_s: float | None
    cpus: float | None
    cpus_limit: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    memory_peak_bytes: int | None
    pids: int | None
    pids_limit: int | None
    workspace: DiskStats | None
    tmp: DiskStats | None


_OPTIONAL = (
    *("cpu_s", "cpus", "cpus_limit", "memory_bytes", "memory_limit_bytes", "memory_peak_bytes"),
    *("pids", "pids_limit"),
)


def stats_of(one: pb.SandboxStats) -> SandboxStats:
    """Return a reading; what is not set is None."""
    counts: dict[str, Any] = {name: getattr(one, name) if one.HasField(name) else None for name in _OPTIONAL}
    return SandboxStats(
        id=one.id,
        thread=one.thread,
        runtime=one.runtime,
        calls=one.calls,
        workspace=_disk(one.workspace) if one.HasField("workspace") else None,
        tmp=_disk(one.tmp) if one.HasField("tmp") else None,
        **counts,
    )


def _disk(one: pb.DiskStats) -> DiskStats:
    return DiskStats(one.used_bytes, one.partial, one.limit_bytes if one.HasField("limit_bytes") else None)
