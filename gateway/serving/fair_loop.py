"""Fair scheduling of the event loop: ready callbacks of one tenant do not delay another tenant's.

A turn of asyncio's loop runs all ready callbacks before it looks for input. A call of fifteen steps would wait fifteen
times for everything that a busy tenant has ready. Here each tenant has a queue of its own, of which a turn runs a few
callbacks. While one tenant alone uses the loop, and for callbacks without a tenant, turns are asyncio's.

A task belongs to the tenant in its context, and so do the tasks and callbacks that it starts. This replaces the loop's
private `_ready` (CPython 3.11 to 3.14). A loop without such a queue stays as it is, and
tests/unit/gateway/serving/test_fair_loop.py fails.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from threading import get_ident
from time import monotonic
from typing import Any

from gateway.support.current_tenant import CURRENT_TENANT

_CALLBACKS_A_TURN = 1
# After so long without a callback of another tenant, the only tenant counts as alone.
_IDLE_S = 0.5
# super() would cost more than what it calls, and each callback and turn comes through here.
_append, _length = deque.append, deque.__len__


def schedule_for(tenant: str | None) -> None:
    """Schedule the current task, and what it starts from now on, as work of a tenant."""
    CURRENT_TENANT.set(tenant)


def make_fair(loop: asyncio.AbstractEventLoop) -> None:
    """Schedule a loop's callbacks fairly from now on; call it in the loop's thread."""
    ready = getattr(loop, "_ready", None)
    if type(ready) is deque:
        fair = FairQueue()
        for handle in ready:
            fair.append(handle)
        loop._ready = fair  # type: ignore[attr-defined]  # noqa: SLF001


def call_last(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call a function after everything that is ready now."""
    ready = getattr(loop, "_ready", None)
    context = copy_context()
    if isinstance(ready, FairQueue):
        context.run(CURRENT_TENANT.set, ready.busiest())
    loop.call_soon(callback, context=context)


class FairQueue(deque[Any]):
    """A loop's queue of asyncio.Handle. The loop reads its length at the start of a turn and runs that many callbacks.

    The deque itself contains the callbacks of the next turn; tenants' callbacks enter it a few at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()
        self._tenants: dict[str, deque[Any]] = {}
        self._waiting: set[int] = set()
        # The tenant of the latest callback, and when the tenant last changed.
        self._latest = ""
        self._others_s = 0.0
        # The tenant that counts as alone: its callbacks are those of the next turn.
        self._alone: str | None = None

    def append(self, handle: Any) -> None:
        tenant = handle._context.get(CURRENT_TENANT)  # noqa: SLF001
        # Other threads add callbacks at any time (call_soon_threadsafe), for which only the deque itself is safe.
        if tenant is None or tenant == self._alone or get_ident() != self._thread:
            _append(self, handle)
            return
        # The loop adds the callback of a readable socket in each turn until it runs.
        if id(handle) in self._waiting:
            return
        self._waiting.add(id(handle))
        if tenant != self._latest or self._alone is not None:
            self._latest, self._others_s, self._alone = tenant, monotonic(), None
        # Creating a deque may run the garbage collector, whose finalizers may add callbacks here.
        self._tenants.setdefault(tenant, deque()).append(handle)

    def busiest(self) -> str | None:
        """Return the tenant with the most ready callbacks; None if no tenant has any."""
        return max(self._tenants, key=lambda tenant: len(self._tenants[tenant]), default=None)

    def clear(self) -> None:
        super().clear()
        self._tenants.clear()
        self._waiting.clear()

    def __bool__(self) -> bool:
        return bool(_length(self) or self._tenants)

    def __len__(self) -> int:
        """Start a turn; return the number of callbacks that it runs."""
        if self._tenants:
            alone = len(self._tenants) == 1 and monotonic() - self._others_s > _IDLE_S
            self._alone = next(iter(self._tenants)) if alone else None
            for tenant, queue in list(self._tenants.items()):
                for _ in range(len(queue) if alone else min(_CALLBACKS_A_TURN, len(queue))):
                    handle = queue.popleft()
                    self._waiting.discard(id(handle))
                    _append(self, handle)
                if not queue:
                    del self._tenants[tenant]
        return _length(self)
