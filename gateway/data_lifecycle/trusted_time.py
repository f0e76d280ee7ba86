"""The time of day that retention acts on: a clock that jumps ahead must not delete recent data.

Each look is recorded in the database that all gateways share. Looks come every few minutes, so one that is more than
a day after the last means that no gateway ran in between or that a clock is wrong. The time is then trusted only after
gateways have run for another day, in which an operator can correct the clock; setting it back ends the wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gateway.storage.database import Database
from gateway.storage.settings_store import changed
from gateway.support.clock import NowUs

JUMP_US = 86_400 * 1_000_000
"""A look this much later than the last one is a jump, and gateways must run this long before it is trusted."""
_NAME = "retention_looks"


@dataclass(frozen=True)
class _Looks:
    """When a gateway last looked, and to which time the clock jumped, UTC microseconds since 1970; 0 for no jump.

    `stood_us` is how long gateways have run since the jump.
    """

    last_us: int
    jumped_us: int = 0
    stood_us: int = 0

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(*map(int, text.split()))

    def then(self, now_us: int) -> _Looks:
        passed_us = now_us - self.last_us
        if passed_us > JUMP_US:  # a further jump does not restart the wait of the first one
            return _Looks(now_us, self.jumped_us or now_us, self.stood_us)
        stood_us = self.stood_us + max(passed_us, 0)
        if now_us < self.jumped_us or stood_us >= JUMP_US or not self.jumped_us:
            return _Looks(now_us)
        return _Looks(now_us, self.jumped_us, stood_us)

    def __str__(self) -> str:
        return f"{self.last_us} {self.jumped_us} {self.stood_us}"


class TrustedTime:
    """The time of day, once it is trusted."""

    def __init__(self, database: Database, clock: NowUs) -> None:
        self._database = database
        self._clock = clock

    async def now_us(self) -> int | None:
        """Return UTC microseconds since 1970; None while the clock has jumped ahead and is not trusted."""
        now_us = self._clock()

        def look(before: str | None) -> str:
            return str(_Looks.of(before).then(now_us) if before is not None else _Looks(now_us))

        looks = _Looks.of(await changed(self._database, _NAME, look))
        return None if looks.jumped_us else now_us
