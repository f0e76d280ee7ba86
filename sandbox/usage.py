"""What a sandbox uses: as the kernel counts it, as a Docker engine reports it, and as its daemon says; all bounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Past what any machine has; the kernel says 2^63 less a page for no limit.
_COUNT_LIMIT = 2**60
PIDS_LIMIT = 2**22


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses. None is unknown: gVisor's share is in no control group, and not every kernel keeps a peak.

    `cpu_s` is processor time since it began. `memory_bytes` has the files of /tmp in it, and not what the kernel would
    drop at once (page cache that is inactive); the peak has all of it.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    pids_limit: int | None = None


def usage_of(stats: Mapping[str, Any]) -> Usage:
    """Return what an answer to GET /containers/{name}/stats says; what is not there or cannot be is None."""
    cpu_ns = _count(_section(_section(stats, "cpu_stats"), "cpu_usage"), "total_usage")
    memory, pids = _section(stats, "memory_stats"), _section(stats, "pids_stats")
    return Usage(
        cpu_s=None if cpu_ns is None else cpu_ns / 1_000_000_000,
        memory_bytes=_memory_bytes(memory),
        memory_limit_bytes=_count(memory, "limit"),
        memory_peak_bytes=_count(memory, "max_usage"),
        pids=_count(pids, "current", PIDS_LIMIT),
        pids_limit=_count(pids, "limit", PIDS_LIMIT),
    )


def _memory_bytes(memory: Mapping[str, Any]) -> int | None:
    usage = _count(memory, "usage")
    if usage is None:
        return None
    kept = _section(memory, "stats")
    # By the names of the two versions of control groups.
    inactive = _count(kept, "total_inactive_file") or _count(kept, "inactive_file") or 0
    return max(usage - inactive, 0)


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = found.get(name)
    return section if isinstance(section, Mapping) else {}


def counted(value: object, limit: int = _COUNT_LIMIT) -> int | None:
    """Return a count; 0 is what is said of what was not read, for no living sandbox uses nothing."""
    return value if type(value) is int and 0 < value < limit else None


def _count(found: Mapping[str, Any], name: str, limit: int = _COUNT_LIMIT) -> int | None:
    return counted(found.get(name), limit)


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
