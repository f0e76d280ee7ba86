"""Long results in slices, so that a reader's thread is soon free for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Row

T = TypeVar("T")


def slice_of(rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], T], limit_chars: int) -> tuple[list[T], Any]:
    """Return the first rows, parsed: as many as fit the limit together, and at least one.

    Also returns the key of the last one if there are more rows. The key is a row's first column; its last one may be
    long.
    """
    parsed: list[T] = []
    chars, last = 0, None
    for row in rows:
        chars += len(row[-1])
        if parsed and chars > limit_chars:
            return parsed, last
        parsed.append(parse(row))
        last = row[0]
    return parsed, None
