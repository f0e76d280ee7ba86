"""FairSemaphore: a few places, which tenants take in turns.

A free slot goes to the tenant with the fewest, and among those to the one that has waited longest since its last one.
So a tenant without a place waits for the end of one turn, and one more for each other waiting tenant, however much the
others have asked for. Where one tenant may not have all places, it does not even wait for the first.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.errors import TooManyWaiting

# For callers that cannot even wait: some of those before them are done by then.
_RETRY_S = 2.0


class FairSemaphore:
    """`places` that tenants have in turns, one tenant `of_one` of them at most. `what` is what waits, in the plural.

    Of one tenant `waiting_limit` wait at most; None is no limit.
    """

    def __init__(
        self,
        places: int,
        waiting_limit: int | None = None,
        *,
        of_one: int | None = None,
        what: str = "sandboxes of this tenant wait to be made",
    ) -> None:
        self._free = places
        self._of_one = places if of_one is None else of_one
        self._waiting_limit = waiting_limit
        self._what = what
        self._under_way: Counter[str] = Counter()
        # The tenant that has waited longest since its last place comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Have a place for as long as the block takes; TooManyWaiting where too many of the tenant wait already."""
        await self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def take_free(self, tenant: str) -> bool:
        """Take a place if one is free for the tenant, which then does not wait; return whether it was."""
        # While a place is free, no tenant that may have it waits.
        if not self._free or not self._may_have_one(tenant):
            return False
        self._free -= 1
        self._under_way[tenant] += 1
        return True

    async def take(self, tenant: str) -> None:
        """Take a place, until it is given back; TooManyWaiting where too many of the tenant wait already."""
        if self.take_free(tenant):
            return
        queue = self._waiting.setdefault(tenant, deque())
        if self._waiting_limit is not None and len(queue) >= self._waiting_limit:
            raise TooManyWaiting(
                f"{len(queue)} {self._what}, which is the limit: try again in {_RETRY_S:g} s", _RETRY_S
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(tenant)  # it had just been given one
            else:
                self._leave(tenant, turn)
            raise

    def _may_have_one(self, tenant: str) -> bool:
        return self._under_way[tenant] < self._of_one

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is not None:
            with contextlib.suppress(ValueError):
                queue.remove(turn)
            if not queue:
                del self._waiting[tenant]

    def give_back(self, tenant: str) -> None:
        """Give a place back, to the tenant whose turn it is."""
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        self._free += 1
        while self._free and (able := [one for one in self._waiting if self._may_have_one(one)]):
            # The first of those with the fewest: min() keeps to the order.
            following = min(able, key=lambda one: self._under_way[one])
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            if queue:
                self._waiting[following] = queue
            if not turn.done():
                self._free -= 1
                self._under_way[following] += 1
                turn.set_result(None)
