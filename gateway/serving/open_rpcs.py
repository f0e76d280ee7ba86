"""Limits all open RPCs of a process below the server's own limit, at which it would refuse callers at random.

Of the places one part is reserved for tenants with few open RPCs, another for operators, and the rest is for callers
that are not known yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.errors import Overloaded
from gateway.storage.audit_store import OPERATORS

OPEN_RPCS = 1280
"""Of all tenants; then with those that have few open; then with operators."""
OPEN_RPCS_WITH_FEW = 1536
OPEN_RPCS_WITH_OPERATORS = 1600
_FEW = 8
_RETRY_S = 1.0


class OpenRpcs:
    """Counts the open RPCs of each tenant."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self.in_all = 0

    def one(self, tenant: str) -> Callable[[], None]:
        """Count one more until the returned function is called; raises Overloaded."""
        if self.in_all >= OPEN_RPCS and self.in_all >= self._most(tenant):
            raise Overloaded(
                f"this gateway already has {self.in_all} open calls and streams, which is the limit: try again later",
                _RETRY_S,
            )
        self.in_all += 1
        self._open[tenant] += 1

        def end() -> None:
            self.in_all -= 1
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

        return end

    def _most(self, tenant: str) -> int:
        if tenant == OPERATORS:
            return OPEN_RPCS_WITH_OPERATORS
        return OPEN_RPCS_WITH_FEW if self._open[tenant] < _FEW else OPEN_RPCS
