"""Objects: bytes by name, where a tenant's snapshots are stored; a directory of the disk, or a part of an S3 bucket.

tests/unit/gateway/snapshots/test_objects.py is what both promise.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

PART_BYTES = 8 * 1024 * 1024
"""How much of an object is in memory at a time, at most: more than a piece of a file has."""


class Missing(LookupError):
    """There is no object of this name."""


class Objects(Protocol):
    """The objects of one tenant. Blocking; for threads, several at once.

    A name exists only with all of its bytes, even if this process is killed. Names have slashes, and come in order.
    To remove anything, have the tenant's exclusive lock. Raises Unavailable, and NoSpace for what does not fit.
    """

    threads: int
    """How many threads are worth using at once."""

    def put(self, name: str, parts: Iterable[bytes], *, last: bool = False) -> int:
        """Store the parts under a name; return how many bytes that takes. An exception of `parts` leaves nothing.

        Once the `last` of several exists, so do the others, even if the machine fails.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return how many bytes an object takes; None if there is none."""
        ...

    def get(self, name: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
        """Yield an object in parts of at most so many bytes. Raises Missing."""
        ...

    def names(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the names in a directory ("a/") or all, in order, and how many bytes each takes."""
        ...

    def remove(self, names: Collection[str]) -> None:
        """Remove objects; a missing one is no error."""
        ...

    def tidy(self) -> None:
        """Remove what killed processes left of objects that never got their names."""
        ...

    def erase(self) -> None:
        """Remove everything."""
        ...

    def takes(self, size_bytes: int) -> int:
        """Return how many bytes an object of this size takes."""
        ...
