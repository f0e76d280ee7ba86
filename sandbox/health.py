"""How a sandbox's daemon says it is: its word, within bounds."""

from __future__ import annotations

from dataclasses import dataclass


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
