"""How many sandboxes live: idle ones give way to new ones, of the tenant with the most first.

Sandboxes of other processes count as of a moment ago, so a limit may be exceeded by as many as are created at the same
time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from sandbox.engines.engine import Leasing
from sandbox.errors import SandboxUnavailable
from sandbox.keeper.limits import KeeperLimits
from sandbox.keeper.place import Place, Places
from sandbox.keeper.removals import Removals
from sandbox.sandbox import LeftSandbox


class Capacity:
    """Enforces `max_live` and `max_live_per_tenant`."""

    def __init__(self, engine: Leasing, places: Places, removals: Removals, limits: KeeperLimits) -> None:
        self._engine = engine
        self._places = places
        self._removals = removals
        self._limits = limits

    async def adopt(self, left: Iterable[LeftSandbox], now_s: float) -> None:
        """Keep what an earlier process left, as idle; what is past the limits, counted from the first, is removed."""
        places = self._places.by_owner
        surplus = []
        for sandbox in left:
            owner = (sandbox.tenant, sandbox.thread)
            if owner in places:
                continue
            of_tenant = sum(tenant == sandbox.tenant for tenant, _ in places)
            if len(places) >= self._limits.max_live or of_tenant >= self._limits.max_live_per_tenant:
                surplus.append(self._removals.remove(owner, sandbox.id))
                continue
            place = places[owner] = Place()
            place.left, place.used_s = sandbox.id, now_s
        await asyncio.gather(*surplus)

    async def make_room(self, tenant: str) -> None:
        """Make room for one more: past its own limit a tenant loses an idle one, past `max_live` the largest does.

        The new sandbox counts as the tenant's, which loses where others have as many: no tenant loses a sandbox to one
        that has more.
        """
        places = self._places.by_owner
        others = {one for one in self._engine.owners() if one not in places and not self._removals.is_removing(one)}
        live = Counter(theirs for theirs, _ in (*places, *others))
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
        if self._places.forget_idle(tenant):
            return True
        return elsewhere and await self._engine.remove_idle(tenant, stop=self._limits.keeps_stopped)
