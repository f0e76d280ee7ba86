"""A limit by tenant and in all: bytes of messages in memory, uploads in progress."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class Budget:
    """An amount of one tenant and of all. A tenant that uses nothing is always granted something."""

    def __init__(self, of_tenant: int, in_all: int) -> None:
        self._of_tenant = of_tenant
        self._in_all = in_all
        self._used: Counter[str] = Counter()
        self.in_all = 0
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def configure(self, of_tenant: int, in_all: int) -> None:
        self._of_tenant, self._in_all = of_tenant, in_all

    def fits(self, tenant: str, size: int) -> bool:
        """Return whether a tenant may use that much more."""
        used = self._used.get(tenant, 0)
        if not used:
            return True
        return used + size <= self._of_tenant and self.in_all + size <= self._in_all

    def add(self, tenant: str, size: int) -> None:
        """Add an amount, whatever the limits are; a negative one is given back."""
        self.in_all += size
        self._used[tenant] += size
        if not self._used[tenant]:
            del self._used[tenant]
        if size < 0 and self._waiting:
            # Other tenants may wait for the total.
            for waiting in list(self._waiting):
                self._wake(waiting)

    async def take(self, tenant: str, size: int) -> None:
        """Add an amount, after a wait until it fits if necessary. Waiters of one tenant are served in order."""
        if tenant not in self._waiting and self.fits(tenant, size):
            self.add(tenant, size)
            return
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((size, taken))
        try:
            await taken
        except asyncio.CancelledError:
            if taken.done() and not taken.cancelled():
                self.add(tenant, -size)  # it was granted in the same moment
            else:
                taken.cancel()
                self._wake(tenant)
            raise

    def _wake(self, tenant: str) -> None:
        queue = self._waiting.get(tenant)
        while queue:
            size, taken = queue[0]
            if not taken.done():
                if not self.fits(tenant, size):
                    return
                self.add(tenant, size)
                taken.set_result(None)
            queue.popleft()
        self._waiting.pop(tenant, None)
