"""What sandboxes use, for their tenants to watch: each is read at most twice a second, however many watch.

A sandbox of this process is read through its daemon, any other through the engine, which may take a second. Only the
daemon can count what files take. Reading does not reset a sandbox's idle timer.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from gateway.support.background import pause
from sandbox.client.cgroup_usage import read_usage
from sandbox.engines.engine import Listing
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.fair_semaphore import FairSemaphore
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import ListedSandbox, Sandbox
from sandbox.usage import DiskCount, Usage

SANDBOXES_LIMIT = 200
"""The number of a tenant's sandboxes that are read at once."""
# A younger reading is returned again.
_FRESH_S = 0.4
# A shorter interval shows the scheduler's slices, and after a longer one nothing was watching: no share is returned.
_SHORTEST_S, _LONGEST_S = 0.1, 60.0
_DISK_FRESH_S = 10.0
_DISK_TIMEOUT_S = 2.0
_DAEMON_TIMEOUT_S = 1.0
# Few of the engine's threads: an engine 20.10 returns its counts once a second.
_ENGINE_AT_ONCE, _OF_ONE_TENANT = 3, 2
_METERS_LIMIT = 4096


@dataclass(frozen=True)
class Disk:
    """What files take of the disk; `partial` if there are more. The limit is None if it is not known."""

    used_bytes: int
    partial: bool
    limit_bytes: int | None = None


@dataclass(frozen=True)
class SandboxStats:
    """A reading. `cpus` are those used since the previous reading; None is unknown."""

    sandbox: ListedSandbox
    calls: int
    usage: Usage
    cpus: float | None = None
    cpus_limit: float | None = None
    workspace: Disk | None = None
    tmp: Disk | None = None


@dataclass
class _Meter:
    """The last reading of a sandbox, and its time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    usage: Usage | None = None
    cpus: float | None = None
    read_s: float = 0.0
    disks: tuple[Disk | None, Disk | None] = (None, None)
    walked_s: float = float("-inf")


class SandboxUsage:
    """Reads what sandboxes use."""

    def __init__(self, engine: Listing, keeper: SandboxKeeper, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._keeper = keeper
        self._clock = clock
        # By sandbox id, the least recently read first.
        self._meters: OrderedDict[str, _Meter] = OrderedDict()
        self._asking = FairSemaphore(_ENGINE_AT_ONCE, of_one=_OF_ONE_TENANT)
        self._closing = asyncio.Event()

    async def read(self, tenant: str, thread: str | None = None) -> Sequence[SandboxStats]:
        """Return what a tenant's running sandboxes, or that of one thread, use, by id."""
        live = [one for one in await self._engine.listed(tenant) if one.state == "running"]
        asked = [one for one in live if thread in (None, one.thread)][:SANDBOXES_LIMIT]
        found = await asyncio.gather(*(self._stats(tenant, one) for one in asked))
        return [one for one in found if one is not None]

    async def watch(
        self, tenant: str, thread: str | None, *, interval_s: float, readings: int
    ) -> AsyncIterator[Sequence[SandboxStats]]:
        """Yield so many readings, 0 for no end; ends early with the gateway."""
        done = 0
        while not self._closing.is_set():
            yield await self.read(tenant, thread)
            done += 1
            if done == readings:
                return
            await pause(self._closing, interval_s)

    def close(self) -> None:
        self._closing.set()

    async def _stats(self, tenant: str, one: ListedSandbox) -> SandboxStats | None:
        meter = self._meters.pop(one.id, None) or _Meter()
        self._meters[one.id] = meter
        if len(self._meters) > _METERS_LIMIT:
            self._meters.popitem(last=False)
        at_hand = self._keeper.at_hand(tenant, one.thread)
        if at_hand is not None and at_hand.id != one.id:
            at_hand = None
        async with meter.lock:
            if meter.usage is None or self._clock() - meter.read_s >= _FRESH_S:
                await self._count(tenant, meter, one, at_hand)
            if meter.usage is None:
                self._meters.pop(one.id, None)
                return None
            if at_hand is not None and self._clock() - meter.walked_s >= _DISK_FRESH_S:
                meter.disks = await _disks(at_hand)
                meter.walked_s = self._clock()
            cpus_limit = (at_hand.posture.cpu_limit_millis / 1000 or None) if at_hand is not None else None
            calls = self._keeper.users(tenant, one.thread)
            return SandboxStats(one, calls, meter.usage, meter.cpus, cpus_limit, *meter.disks)

    async def _count(self, tenant: str, meter: _Meter, one: ListedSandbox, at_hand: Sandbox | None) -> None:
        """Read the kernel's counts: None if the sandbox is gone, unknown if the engine does not return them."""
        usage = None if at_hand is None else await _daemon_usage(at_hand)
        if usage is None:
            async with self._asking.turn(tenant):
                try:
                    usage = await self._engine.usage(one)
                except SandboxUnavailable:
                    usage = Usage()
        now_s = self._clock()
        passed_s, meter.cpus = now_s - meter.read_s, None
        cpu_s, before_s = (None if one is None else one.cpu_s for one in (usage, meter.usage))
        if cpu_s is not None and before_s is not None and _SHORTEST_S <= passed_s <= _LONGEST_S:
            # Counts restart at 0 when a stopped sandbox is started.
            meter.cpus = (cpu_s - before_s) / passed_s if cpu_s >= before_s else None
        meter.usage, meter.read_s = usage, now_s


async def _daemon_usage(sandbox: Sandbox) -> Usage | None:
    """Return what a sandbox's daemon reports; None if it does not answer in time."""
    try:
        async with asyncio.timeout(_DAEMON_TIMEOUT_S):
            return await read_usage(sandbox)
    except (SandboxError, TimeoutError):
        return None


async def _disks(sandbox: Sandbox) -> tuple[Disk | None, Disk | None]:
    """Return what files in the workspace and in /tmp take; None for what is not known in time."""
    try:
        async with asyncio.timeout(_DISK_TIMEOUT_S):
            said = await sandbox.health(count_disk=True)
    except (SandboxError, TimeoutError):
        return None, None
    limits = sandbox.spec.limits

    def disk(count: DiskCount | None, limit_bytes: int) -> Disk | None:
        # A leased sandbox that was created from an older spec has its own limits.
        limit = None if sandbox.outdated else limit_bytes
        return None if count is None else Disk(count.size_bytes, count.partial, limit)

    return disk(said.workspace, limits.workspace_bytes), disk(said.tmp, limits.tmp_bytes)
