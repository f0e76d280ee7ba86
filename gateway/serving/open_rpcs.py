"""All RPCs of a process that were admitted, whatever they do: so many that the server's own limit is never reached.

The server refuses whom it likes past that limit, operators too. So a part of it is nobody's: it is for tenants with
few RPCs open, what is past that for operators, and the rest for those whose caller is not known yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.errors import Overloaded
from gateway.storage.audit_store import OPERATORS

OPEN_RPCS = 1280
"""Of all tenants; then of those with few open; then of operators."""
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
        """Count one more until what is returned is called; raises Overloaded."""
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
