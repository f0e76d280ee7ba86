"""The places of threads' sandboxes in this process, and how many sandboxes live.

Sandboxes of other processes count as of a moment ago, so a limit may be exceeded by as many as are created at the same
time. An idle sandbox gives way to a new one, of the tenant with the most first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from sandbox.engines.engine import Leasing
from sandbox.errors import SandboxUnavailable
from sandbox.keeper.removals import KeeperLimits, Removals
from sandbox.owner import Owner
from sandbox.sandbox import LeftSandbox, Sandbox


class Place:
    """Where a thread's sandbox is: being made, leased `users` times, or idle since `used_s`."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.sandbox: Sandbox | None = None
        # The id of the sandbox that an earlier process left, until the engine has taken it over or replaced it.
        self.left: str | None = None
        self.users = 0
        self.used_s = 0.0
        # How long it may be idle by its tenant's policy; None for the keeper's own limit.
        self.idle_timeout_s: float | None = None
        self.leaving: asyncio.Task[None] | None = None

    @property
    def occupied(self) -> bool:
        """Whether there is a sandbox, of this process or an earlier one."""
        return self.sandbox is not None or self.left is not None


class Places:
    """The places by owner_of(), since sandboxes of an earlier process are known by digests only."""

    def __init__(self, engine: Leasing, removals: Removals, limits: KeeperLimits) -> None:
        self._engine = engine
        self._removals = removals
        self._limits = limits
        self.by_owner: dict[Owner, Place] = {}

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
            self._removals.begin_removal(owner, place.sandbox.id, stop=stop and place.sandbox.alive)
            place.sandbox = None
        if place.left is not None:
            self._removals.begin_removal(owner, place.left, stop=stop)
            place.left = None

    async def adopt(self, left: Iterable[LeftSandbox], now_s: float) -> None:
        """Keep what an earlier process left, as idle; what is past the limits, counted from the first, is removed."""
        surplus = []
        for sandbox in left:
            owner = (sandbox.tenant, sandbox.thread)
            if owner in self.by_owner:
                continue
            of_tenant = sum(tenant == sandbox.tenant for tenant, _ in self.by_owner)
            if len(self.by_owner) >= self._limits.max_live or of_tenant >= self._limits.max_live_per_tenant:
                surplus.append(self._removals.remove(owner, sandbox.id))
                continue
            place = self.by_owner[owner] = Place()
            place.left, place.used_s = sandbox.id, now_s
        await asyncio.gather(*surplus)

    async def make_room(self, tenant: str) -> None:
        """Make room for one more: past its own limit a tenant loses an idle one, past `max_live` the largest does.

        The new sandbox counts as the tenant's, which loses where others have as many: no tenant loses a sandbox to one
        that has more.
        """
        leaving = self._removals.under_way
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
