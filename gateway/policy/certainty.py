"""How surely something matches a part of a call, which is not always known whole before it runs."""

from __future__ import annotations

from enum import IntEnum


class Certainty(IntEnum):
    """What is known, ordered: of several that must all match the least counts, of alternatives the greatest."""

    NO = 0
    PERHAPS = 1
    YES = 2

    @property
    def opposite(self) -> Certainty:
        """How surely it does not match."""
        return Certainty(2 - self)


NO, PERHAPS, YES = Certainty
