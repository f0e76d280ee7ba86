"""What is read in the background, so that a metrics scrape never waits: disks, sandboxes' usage, what waits.

The disks are the engine's, which has the workspaces, and the state directory's; one that runs short is also logged.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from gateway.errors import AirlockError
from gateway.storage.database import Database
from gateway.storage.waiting_store import count_waiting
from gateway.support.background import Periodic
from gateway.telemetry.attributes import DISK
from gateway.telemetry.telemetry import Telemetry
from sandbox.client.cgroup_usage import read_usage
from sandbox.errors import SandboxError
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import Sandbox

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
_READ_TIMEOUT_S = 1.0


@dataclass
class Disks:
    """The free bytes of each disk that answered last: `engine` and `state`."""

    free: Mapping[str, FreeBytes]
    least_bytes: int
    free_bytes: dict[str, int]
    reported: set[str] = field(default_factory=set)
    """The disks that were logged as short."""

    def short(self) -> Mapping[str, int]:
        """Return 1 for each disk that is short, 0 for the others."""
        return {disk: int(free < self.least_bytes) for disk, free in list(self.free_bytes.items())}

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
    telemetry: Telemetry, engine: FreeBytes | None, state_dir: Path, *, reserve_bytes: int
) -> AsyncIterator[Disks]:
    """Watch the engine's disk, if any, and the state directory's until the block ends."""

    async def state() -> int:
        found = await asyncio.to_thread(os.statvfs, state_dir)
        return found.f_bavail * found.f_frsize

    free: dict[str, FreeBytes] = {"state": state} | ({"engine": engine} if engine is not None else {})
    disks = Disks(free, reserve_bytes or _LEAST_BYTES, {})
    telemetry.instruments.read("airlock.disk.free", lambda: disks.free_bytes, DISK)
    telemetry.instruments.read("airlock.disk.short", disks.short, DISK)
    async with Periodic(disks.look, _EVERY_S, "the disks were not looked at").running("disks"):
        yield disks


class SandboxTotals:
    """Sums over the `living` sandboxes; the processor time of removed ones stays counted.

    A reading asks the daemon of each sandbox in turn, some milliseconds each. It does not reset idle timers.
    """

    def __init__(self, living: Callable[[], Sequence[Sandbox]]) -> None:
        self._living = living
        self._cpu_s: dict[str, float] = {}
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.pids = 0

    async def read(self) -> None:
        """Read what each sandbox uses. Processor time from before a sandbox's first reading does not count."""
        memory_bytes, pids, cpu_s = 0, 0, dict[str, float]()
        for sandbox in self._living():
            try:
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    usage = await read_usage(sandbox)
            except (SandboxError, TimeoutError):
                continue  # it is gone or busy
            if usage is None:
                continue
            memory_bytes += usage.memory_bytes or 0
            pids += usage.pids or 0
            if usage.cpu_s is not None:
                cpu_s[sandbox.id] = usage.cpu_s
                # Less than before: the sandbox was stopped and started again, and counts from zero.
                before_s = self._cpu_s.get(sandbox.id, usage.cpu_s)
                self.cpu_s += usage.cpu_s - before_s if usage.cpu_s >= before_s else usage.cpu_s
        self._cpu_s, self.memory_bytes, self.pids = cpu_s, memory_bytes, pids


@contextlib.asynccontextmanager
async def totalled(telemetry: Telemetry, keeper: SandboxKeeper) -> AsyncIterator[None]:
    """Export metrics of what sandboxes use until the block ends, every `telemetry.sandbox_usage_s` seconds."""
    every_s = telemetry.settings.sandbox_usage_s
    if not every_s or telemetry.settings.metrics_listen is None:
        yield
        return
    totals = SandboxTotals(keeper.living)
    telemetry.instruments.read("airlock.sandbox.cpu.time", lambda: totals.cpu_s)
    telemetry.instruments.read("airlock.sandbox.memory.usage", lambda: totals.memory_bytes)
    telemetry.instruments.read("airlock.sandbox.pids", lambda: totals.pids)
    async with Periodic(totals.read, every_s, "what sandboxes use was not read").running("what sandboxes use"):
        yield


@contextlib.asynccontextmanager
async def counted(telemetry: Telemetry, database: Database) -> AsyncIterator[None]:
    """Keep the gauges of waiting runs and approvals, and time the database's writer, until the block ends."""
    if telemetry.settings.metrics_listen is None:
        yield
        return
    found = {"airlock.run.waiting": 0, "airlock.approval.waiting": 0}
    for name in tuple(found):
        telemetry.instruments.read(name, partial(found.__getitem__, name))

    def wrote(writes: int, taken_s: float) -> None:
        telemetry.instruments.add("airlock.database.write.duration", taken_s)
        telemetry.instruments.add("airlock.database.write.group_size", writes)

    async def count() -> None:
        found["airlock.run.waiting"], found["airlock.approval.waiting"] = await count_waiting(database)

    database.listen(wrote)
    async with Periodic(count, _EVERY_S, "what waits is not counted", (AirlockError,)).running("count of what waits"):
        yield
