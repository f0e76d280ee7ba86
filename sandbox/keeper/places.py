"""The places of threads' sandboxes in this process, how many live, and the sweeps that end idle and overdue ones.

Sandboxes of other processes count as of a moment ago, so a limit may be exceeded by as many as are created at the same
time. An idle sandbox gives way to a new one, of the tenant with the most first.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandbox.engines.background import BackgroundTasks
from sandbox.engines.engine import Leasing
from sandbox.engines.lifetime import GRACE_S
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import LeftSandbox, Owner, Sandbox
from sandbox.transition import STOPPING, UNUSED

log = logging.getLogger(__name__)

_SWEEPS_PER_TIMEOUT = 4


@dataclass(frozen=True)
class KeeperLimits:
    """An idle sandbox is stopped after `idle_timeout_s`, and removed when stopped for `stopped_timeout_s`.

    A `stopped_timeout_s` of 0 removes idle sandboxes at once. `max_live` and `max_live_per_tenant` limit the living
    sandboxes, `max_stopped` the stopped ones, of all gateways of the engine together.
    """

    idle_timeout_s: float
    max_live: int
    max_live_per_tenant: int
    stopped_timeout_s: float
    max_stopped: int

    @property
    def keeps_stopped(self) -> bool:
        return self.stopped_timeout_s > 0


@dataclass(eq=False)
class Place:
    """Where a thread's sandbox is: being made, leased `users` times, or idle since `used_s`."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sandbox: Sandbox | None = None
    # The id of the sandbox that an earlier process left, until the engine has taken it over or replaced it.
    left: str | None = None
    users: int = 0
    used_s: float = 0.0
    # How long it may be idle by its tenant's policy; None for the keeper's own limit.
    idle_timeout_s: float | None = None
    leaving: asyncio.Task[None] | None = None

    @property
    def occupied(self) -> bool:
        """Whether there is a sandbox, of this process or an earlier one."""
        return self.sandbox is not None or self.left is not None


class Places:
    """The places by owner_of(), since sandboxes of an earlier process are known by digests only.

    Stopping and removing happens in the `background`, for no call waits for it. `under_way` has the owners whose
    sandbox the engine still has, but which no longer counts. A failure is logged: the engine's next reconciliation
    tries again. begin_sweeps() has idle and overdue sandboxes looked for; `clock` is in seconds, from any moment on.
    """

    def __init__(self, engine: Leasing, limits: KeeperLimits, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self.by_owner: dict[Owner, Place] = {}
        self.under_way: Counter[Owner] = Counter()
        self.background = BackgroundTasks()
        self.closing = False
        # The shortest time that any tenant's sandbox may be idle, and what wakes the sweeps for a shorter one.
        self._shortest_s = limits.idle_timeout_s
        self._shorter = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None

    def enter(self, owner: Owner) -> Place:
        """Return an owner's place, made if there is none, with one user more."""
        place = self.by_owner.setdefault(owner, Place())
        place.users += 1
        return place

    def forget(self, owner: Owner, place: Place, *, stop: bool = False) -> None:
        """Drop a place; its sandbox is removed in the background, or stopped with `stop`."""
        if self.by_owner.get(owner) is place:
            del self.by_owner[owner]
        if place.sandbox is not None:
            self.begin_removal(owner, place.sandbox.id, stop=stop and place.sandbox.alive)
            place.sandbox = None
        if place.left is not None:
            self.begin_removal(owner, place.left, stop=stop)
            place.left = None

    async def adopt(self, left: Iterable[LeftSandbox]) -> None:
        """Keep what an earlier process left, as idle; what is past the limits, counted from the first, is removed."""
        surplus = []
        for sandbox in left:
            owner = (sandbox.tenant, sandbox.thread)
            if owner in self.by_owner:
                continue
            of_tenant = sum(tenant == sandbox.tenant for tenant, _ in self.by_owner)
            if len(self.by_owner) >= self._limits.max_live or of_tenant >= self._limits.max_live_per_tenant:
                surplus.append(self.remove(owner, sandbox.id))
                continue
            place = self.by_owner[owner] = Place()
            place.left, place.used_s = sandbox.id, self._clock()
        await asyncio.gather(*surplus)

    async def make_room(self, tenant: str) -> None:
        """Make room for one more: past its own limit a tenant loses an idle one, past `max_live` the largest does.

        The new sandbox counts as the tenant's, which loses where others have as many: no tenant loses a sandbox to one
        that has more.
        """
        leaving = self.under_way
        others = {one for one in self._engine.owners() if one not in self.by_owner and one not in leaving}
        live = Counter(theirs for theirs, _ in (*self.by_owner, *others))
        live[tenant] += 1
        elsewhere = {theirs for theirs, _ in others}
        if live[tenant] > self._limits.max_live_per_tenant:
            if not await self._end_idle(tenant, elsewhere=tenant in elsewhere):
                raise SandboxUnavailable(
                    f"all {self._limits.max_live_per_tenant} sandboxes of this tenant are busy: try again later"
                )
        elif live.total() > self._limits.max_live:
            for most in sorted(live, key=lambda one: (-live[one], one != tenant)):
                if await self._end_idle(most, elsewhere=most in elsewhere):
                    return
            raise SandboxUnavailable(
                f"all {self._limits.max_live} sandboxes are busy: try again later, or raise sandbox.max_live"
            )

    async def _end_idle(self, tenant: str, *, elsewhere: bool) -> bool:
        """End a tenant's longest idle sandbox, one of this process in the background; return whether it had one."""
        mine = self.by_owner.items()
        idle = [(place.used_s, owner) for owner, place in mine if owner[0] == tenant and place.users == 0]
        if idle:
            _, owner = min(idle)
            self.forget(owner, self.by_owner[owner], stop=True)
            return True
        return elsewhere and await self._engine.remove_idle(tenant, stop=self._limits.keeps_stopped)

    def begin_removal(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> asyncio.Task[None]:
        """Remove a sandbox in the background, or stop it with `stop` where stopped sandboxes are kept."""
        return self.background.begin(self.remove(owner, sandbox_id, stop=stop))

    async def remove(self, owner: Owner, sandbox_id: str, *, stop: bool = False) -> None:
        self.under_way[owner] += 1
        try:
            if not (stop and self._limits.keeps_stopped):
                await self._engine.remove(sandbox_id, STOPPING if self.closing else UNUSED)
            elif await self._engine.stop_idle(sandbox_id):
                await self.trim()
        except SandboxError as error:
            log.warning("sandbox %s could not be removed, a later look will: %s", sandbox_id, error)
        finally:
            self.under_way[owner] -= 1
            if not self.under_way[owner]:
                del self.under_way[owner]

    async def end_overdue(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that is past its lifetime, with the calls in it; log a failure."""
        try:
            await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)
        except SandboxError as error:
            log.warning("sandbox %s is past its lifetime, and a later look will end it: %s", sandbox.id, error)

    async def trim(self) -> None:
        await self._engine.trim_stopped(timeout_s=self._limits.stopped_timeout_s, limit=self._limits.max_stopped)

    async def trim_logged(self) -> None:
        try:
            await self.trim()
        except SandboxError as error:
            log.warning("sandboxes that were stopped for too long were not removed: %s", error)

    def begin_sweeps(self, idle_timeout_s: float | None = None) -> None:
        """Sweep, often enough for a sandbox that may be idle for so long."""
        if idle_timeout_s is not None and idle_timeout_s < self._shortest_s:
            self._shortest_s = idle_timeout_s
            self._shorter.set()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_forever())

    async def end_sweeps(self) -> None:
        """End the sweeps; a look that is under way lets go of what it looked at."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})

    def sweep(self) -> None:
        """Begin to stop what is idle for too long or past its lifetime, or to remove it where nothing is stopped."""
        now_s = self._clock()
        for owner, place in list(self.by_owner.items()):
            timeout_s = self._limits.idle_timeout_s if place.idle_timeout_s is None else place.idle_timeout_s
            overdue_s = None if place.sandbox is None else place.sandbox.overdue_s
            if place.users == 0 and (now_s - place.used_s >= timeout_s or overdue_s is not None):
                self.forget(owner, place, stop=True)
            elif place.sandbox is not None and overdue_s is not None and overdue_s >= GRACE_S:
                self.background.begin(self.end_overdue(place.sandbox))

    async def _sweep_forever(self) -> None:
        look_s = self._limits.idle_timeout_s / _SWEEPS_PER_TIMEOUT
        looked_s = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                # A lifetime may be much shorter than an idle timeout.
                async with asyncio.timeout(min(self._shortest_s / _SWEEPS_PER_TIMEOUT, 60.0)):
                    await self._shorter.wait()
            self._shorter.clear()
            try:
                self.sweep()
                if self._clock() - looked_s < 0.9 * look_s:  # a timer may be a moment early
                    continue
                looked_s = self._clock()
                # What a dead process left: it may have no successor.
                await self.adopt(await self._engine.reconcile())
                await self.trim()
            except SandboxError as error:
                log.warning("what other gateways left was not looked for: %s", error)
            except Exception:  # a full disk, for instance: the next sweep may succeed
                log.exception("sandboxes were not looked after")
