"""How long a sandbox may be used after it was made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Dated(Protocol):
    """What an engine notes of a sandbox; `created_s` is in seconds since 1970, 0 where it is not known."""

    @property
    def created_s(self) -> float: ...


@dataclass(frozen=True)
class Lifetime:
    """A sandbox is past its lifetime `lifetime_s` after it was made; None sets no end. `clock` counts from 1970."""

    lifetime_s: float | None
    clock: Callable[[], float]

    def overdue_s(self, note: Dated) -> float | None:
        """Return for how long a sandbox is past its lifetime; None while it is not, or where its age is unknown."""
        if self.lifetime_s is None or not note.created_s:
            return None
        past_s = self.clock() - (note.created_s + self.lifetime_s)
        return past_s if past_s >= 0 else None

    def is_over(self, note: Dated) -> bool:
        return self.overdue_s(note) is not None
