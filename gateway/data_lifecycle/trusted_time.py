"""The time of day that retention may act on: a clock that jumps ahead must not delete what is young.

Each look is recorded in the database that all gateways share. Looks come every few minutes, so one that is more than
a day after the one before it means either that no gateway ran for that long or that a clock is wrong. Which of the two
cannot be told at once: the time is trusted once gateways have run for a day since. An operator has that day to set a
wrong clock right; setting it back ends the wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gateway.storage.database import Database
from gateway.storage.settings_store import changed
from gateway.support.clock import NowUs

JUMP_US = 86_400 * 1_000_000
"""A look this much later than the one before it is a jump; gateways have to run for as long before it is trusted."""
_NAME = "retention_looks"


@dataclass(frozen=True)
class _Looks:
    """When a gateway looked last, and to which time the clock jumped, UTC microseconds since 1970; 0 for no jump.

    `stood_us` is for how long gateways have run since, in microseconds.
    """

    last_us: int
    jumped_us: int = 0
    stood_us: int = 0

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(*map(int, text.split()))

    def then(self, now_us: int) -> _Looks:
        """Return what is known after one more look."""
        passed_us = now_us - self.last_us
        if passed_us > JUMP_US:  # one more, of gateways that run now and then, leaves the first one's wait as it is
            return _Looks(now_us, self.jumped_us or now_us, self.stood_us)
        stood_us = self.stood_us + max(passed_us, 0)
        if now_us < self.jumped_us or stood_us >= JUMP_US or not self.jumped_us:
            return _Looks(now_us)
        return _Looks(now_us, self.jumped_us, stood_us)

    def __str__(self) -> str:
        return f"{self.last_us} {self.jumped_us} {self.stood_us}"


class TrustedTime:
    """The time of day, once it can be believed."""

    def __init__(self, database: Database, clock: NowUs) -> None:
        self._database = database
        self._clock = clock

    async def now_us(self) -> int | None:
        """Return UTC microseconds since 1970; None while the clock has jumped ahead and is not trusted yet."""
        now_us = self._clock()

        def look(before: str | None) -> str:
            return str(_Looks.of(before).then(now_us) if before is not None else _Looks(now_us))

        looks = _Looks.of(await changed(self._database, _NAME, look))
        return None if looks.jumped_us else now_us
