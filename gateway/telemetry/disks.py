"""The disks that a gateway needs space on: the engine's, which has the workspaces, and the state directory's.

A background task checks them every few seconds. It logs when one runs short and when it has recovered; a metrics scrape
reads the last result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gateway.support.periodic import Periodic
from gateway.telemetry.attributes import DISK
from gateway.telemetry.telemetry import Telemetry
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

FreeBytes = Callable[[], Awaitable[int]]
_EVERY_S = 5.0
_MIB = 1024 * 1024
# Without a reserve, nothing else warns before the database cannot be written.
_LEAST_BYTES = 64 * _MIB
_SHORT = {
    "engine": "the engine's disk has less than its reserve free: nothing in a sandbox may grow until you free space",
    "state": "the state directory's disk is nearly full: free space before the database becomes read-only",
}


@dataclass
class Disks:
    """The free bytes of each disk that answered last: `engine` and `state`."""

    free: Mapping[str, FreeBytes]
    least_bytes: int
    free_bytes: dict[str, int]
    reported: set[str] = field(default_factory=set)
    """The disks that were logged as short."""

    def short(self) -> list[tuple[int, Mapping[str, str]]]:
        """Return 1 for each disk that is short, 0 for the others."""
        return [(int(free < self.least_bytes), {DISK: disk}) for disk, free in self.free_bytes.items()]

    def sizes(self) -> list[tuple[int, Mapping[str, str]]]:
        """Return the free bytes of each disk."""
        return [(free, {DISK: disk}) for disk, free in self.free_bytes.items()]

    async def look(self) -> None:
        """Check each disk, and log the ones that became short or recovered."""
        for disk, free in self.free.items():
            try:
                now = await free()
            except (SandboxError, OSError):
                self.free_bytes.pop(disk, None)  # it does not answer, which the health checks report
                continue
            self.free_bytes[disk] = now
            facts = {"disk": disk, "free_mib": now // _MIB, "wanted_mib": self.least_bytes // _MIB}
            if now >= self.least_bytes:
                if disk in self.reported:
                    log.info("a disk has enough free space again", **facts)
                self.reported.discard(disk)
            elif disk not in self.reported:
                log.error(_SHORT[disk], **facts)
                self.reported.add(disk)


@contextlib.asynccontextmanager
async def watched_disks(
    telemetry: Telemetry, engine: FreeBytes | None, state_dir: Path, *, reserve_bytes: int, every_s: float = _EVERY_S
) -> AsyncIterator[Disks]:
    """Watch the engine's disk, if any, and the state directory's until the block ends."""

    async def state() -> int:
        found = await asyncio.to_thread(os.statvfs, state_dir)
        return found.f_bavail * found.f_frsize

    free: dict[str, FreeBytes] = {"state": state} | ({"engine": engine} if engine is not None else {})
    disks = Disks(free, reserve_bytes or _LEAST_BYTES, {})
    telemetry.instruments.read("airlock.disk.free", disks.sizes)
    telemetry.instruments.read("airlock.disk.short", disks.short)
    async with Periodic(disks.look, every_s, "the disks were not looked at").running("disks"):
        yield disks
