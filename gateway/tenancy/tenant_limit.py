"""Limits what one tenant may have in progress at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Overloaded


class TenantLimit:
    """Counts by tenant, up to `limit` for each; `what` names the counted thing in the error."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._counts: Counter[str] = Counter()

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count one more until the block ends; raises Overloaded at the limit."""
        if self._counts[tenant] >= self._limit:
            raise Overloaded(
                f"{self._limit} {self._what} of this tenant are in progress, the limit: wait for some to end"
            )
        self._counts[tenant] += 1
        try:
            yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]
