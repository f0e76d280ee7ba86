"""How long a sandbox may be used after it was made, and how long calls may go on in it past that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# Twice what a policy grants a call that says nothing of it (limits.timeout_s).
GRACE_S = 600.0


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

    def has_ended(self, note: Dated) -> bool:
        """Return whether a sandbox is to end, with the calls in it, whatever it says of them."""
        return (self.overdue_s(note) or 0.0) >= GRACE_S
