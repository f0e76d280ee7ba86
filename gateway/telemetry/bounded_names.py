"""Bounds the number of label values that others choose."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"


class BoundedNames:
    """Maps the first names to themselves and all later ones to `other`, so that more tenants cost no memory."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        """Give a label to `limit` names, the `known` ones always among them."""
        self._limit = limit
        self._names = set(sorted(known)[:limit])

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) < self._limit:
            self._names.add(name)
            return name
        return OTHER
