"""How much of one call is compared with rules: a long line against many rules is refused before it takes long."""

LIMIT_COMPARISONS = 12_000
"""About a microsecond each; a glob against a glob counts for more."""


class TooComplex(Exception):
    """The comparisons of a call are used up."""


class Budget:
    """What is left of the comparisons of a call."""

    def __init__(self, limit: float = LIMIT_COMPARISONS) -> None:
        self._left = limit

    def spend(self, comparisons: int) -> None:
        """Raise TooComplex when nothing is left."""
        self._left -= comparisons
        if self._left < 0:
            raise TooComplex


UNLIMITED = Budget(float("inf"))
