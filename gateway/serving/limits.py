"""Counts and limits by tenant, or by peer, and in all: bytes of messages, uploads, open RPCs, anonymous calls."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

from gateway.errors import Overloaded
from gateway.storage.audit_store import OPERATORS
from gateway.support.hosts import host_of

OPEN_RPCS = 1280
"""Of all tenants; then with those that have few open; then with operators."""
OPEN_RPCS_WITH_FEW = 1536
OPEN_RPCS_WITH_OPERATORS = 1600
_FEW = 8
_RETRY_S = 1.0


class Tally(Counter[str]):
    """Counts by name, without the names that count nothing."""

    def add(self, name: str, amount: int = 1) -> None:
        """Add an amount, which may be negative."""
        total = self.get(name, 0) + amount
        if total:
            self[name] = total
        else:
            self.pop(name, None)


class Ends:
    """What is to be called at the end, the last one first, and once."""

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []

    def add(self, function: Callable[[], object]) -> None:
        self._functions.append(function)

    def take(self, other: Ends) -> None:
        """Call at this end what was to be called at the other."""
        self._functions += other._functions
        other._functions.clear()

    def close(self) -> None:
        while self._functions:
            self._functions.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Budget:
    """An amount of one tenant and of all. A tenant that uses nothing is always granted something."""

    def __init__(self, of_tenant: int, in_all: int) -> None:
        self._of_tenant = of_tenant
        self._in_all = in_all
        self._used = Tally()
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
        self._used.add(tenant, size)
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


class OpenRpcs:
    """Limits all open RPCs of a process below the server's own limit, at which it would refuse callers at random.

    Some places are reserved for tenants with few open RPCs, and others for operators.
    """

    def __init__(self) -> None:
        self._open = Tally()
        self.in_all = 0

    def one(self, tenant: str) -> Callable[[], None]:
        """Count one more until the returned function is called; raises Overloaded."""
        most = OPEN_RPCS_WITH_FEW if self._open[tenant] < _FEW else OPEN_RPCS
        if self.in_all >= (OPEN_RPCS_WITH_OPERATORS if tenant == OPERATORS else most):
            raise Overloaded(
                f"this gateway already has {self.in_all} open calls and streams, which is the limit: try again later",
                _RETRY_S,
            )
        self._add(tenant, 1)
        return partial(self._add, tenant, -1)

    def _add(self, tenant: str, number: int) -> None:
        self.in_all += number
        self._open.add(tenant, number)


class AnonymousConnections:
    """Limits calls of one kind without a known caller, by connection, by address and in all.

    They never take the places reserved for known callers.
    """

    def __init__(self, *, of_connection: int, of_host: int, in_all: int) -> None:
        self._limits = of_connection, of_host, in_all
        self._open = Tally()

    def one(self, peer: str) -> Ends:
        """Count a call of a peer until what is returned is closed, once or more often; raises Overloaded."""
        names = f"connection {peer}", f"host {host_of(peer)}", "all"
        wheres = "on this connection", "from this address", "on this gateway"
        for name, limit, where in zip(names, self._limits, wheres, strict=True):
            if self._open[name] >= limit:
                raise Overloaded(f"{limit} calls without an authenticated caller are open {where}: try again", _RETRY_S)
        self._add(names, 1)
        ends = Ends()
        ends.add(partial(self._add, names, -1))
        return ends

    def _add(self, names: Iterable[str], number: int) -> None:
        for name in names:
            self._open.add(name, number)
