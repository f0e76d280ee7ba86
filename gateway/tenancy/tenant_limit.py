"""What one tenant may have in flight at once, so that none takes what all of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Overloaded


class TenantLimit:
    """Counts what each tenant holds; `limit` is the most of one, `what` names it in the refusal."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Hold one more; raises Overloaded past the limit."""
        if self._held[tenant] >= self._limit:
            raise Overloaded(
                f"{self._limit} {self._what} of this tenant are under way, the most there may be: wait for some"
            )
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
