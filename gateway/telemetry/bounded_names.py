"""Labels that somebody else chooses the values of: so many of them, and one name for all others."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"


class BoundedNames:
    """Gives the first names a label each, and the later ones one together: a tenant more costs no memory."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        """Let `limit` names have a label, `known` ones among them, which have theirs whoever comes first."""
        self._limit = limit
        self._names = set(sorted(known)[:limit])

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        if name in self._names:
            return name
        if len(self._names) < self._limit:
            self._names.add(name)
            return name
        return OTHER
