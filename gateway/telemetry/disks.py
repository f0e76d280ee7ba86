"""The disks that a gateway needs room on: the engine's, where workspaces are, and the state directory's.

They are looked at every few seconds. One that is short is logged, and again when it no longer is; a scrape reads what
was found last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gateway.support.background import in_background
from gateway.telemetry.attributes import DISK
from gateway.telemetry.telemetry import Telemetry
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

FreeBytes = Callable[[], Awaitable[int]]
_EVERY_S = 5.0
_MIB = 1024 * 1024
# Without a reserve nothing else says when there is too little to write the database.
_LEAST_BYTES = 64 * _MIB
_SHORT = {
    "engine": "the engine's disk has less than its reserve free: nothing in a sandbox may grow until you make room",
    "state": "the state directory's disk is nearly full: make room before the database cannot be written",
}


@dataclass
class Disks:
    """What was found last, by disk: `engine` and `state`. One that cannot be seen is not there."""

    free: Mapping[str, FreeBytes]
    least_bytes: int
    free_bytes: dict[str, int]
    told: set[str] = field(default_factory=set)
    """Those that are known to be short."""

    def short(self) -> list[tuple[int, Mapping[str, str]]]:
        """Return 1 for each disk that is short, and 0 for the others."""
        return [(int(free < self.least_bytes), {DISK: disk}) for disk, free in self.free_bytes.items()]

    def sizes(self) -> list[tuple[int, Mapping[str, str]]]:
        """Return how many bytes are free on each disk."""
        return [(free, {DISK: disk}) for disk, free in self.free_bytes.items()]

    async def look(self) -> None:
        """Look at each disk, and log what became short or no longer is."""
        for disk, free in self.free.items():
            try:
                now = await free()
            except (SandboxError, OSError):
                self.free_bytes.pop(disk, None)  # it does not answer, which others report
                continue
            self.free_bytes[disk] = now
            facts = {"disk": disk, "free_mib": now // _MIB, "wanted_mib": self.least_bytes // _MIB}
            if now >= self.least_bytes:
                if disk in self.told:
                    log.info("a disk has room again", **facts)
                self.told.discard(disk)
            elif disk not in self.told:
                log.error(_SHORT[disk], **facts)
                self.told.add(disk)


@contextlib.asynccontextmanager
async def watched_disks(
    telemetry: Telemetry, engine: FreeBytes | None, state_dir: Path, *, reserve_bytes: int, every_s: float = _EVERY_S
) -> AsyncIterator[Disks]:
    """Watch the engine's disk, where there is one, and the state directory's until the block ends."""

    async def state() -> int:
        found = await asyncio.to_thread(os.statvfs, state_dir)
        return found.f_bavail * found.f_frsize

    free: dict[str, FreeBytes] = {"state": state} | ({"engine": engine} if engine is not None else {})
    disks = Disks(free, reserve_bytes or _LEAST_BYTES, {})
    telemetry.instruments.read("airlock.disk.free", disks.sizes)
    telemetry.instruments.read("airlock.disk.short", disks.short)
    async with in_background(_look_forever(disks, every_s), "disks"):
        yield disks


async def _look_forever(disks: Disks, every_s: float) -> None:
    while True:
        try:
            await disks.look()
        except Exception:  # the next look may go well
            log.exception("the disks were not looked at")
        await asyncio.sleep(every_s)
