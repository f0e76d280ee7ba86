"""What was made of the last texts, so that the same one is not read again: bounded in bytes, safe between threads."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values that were asked for last, up to `limit_bytes` in all by what `size_bytes` says of a key and a value.

    A value larger than a sixteenth of that is not kept, so that one call cannot turn out all others.
    """

    def __init__(self, limit_bytes: int, size_bytes: Callable[[K, V], int]) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = size_bytes
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.kept_bytes = 0
        self._lock = Lock()

    def find(self, key: K) -> V | None:
        """Return the value of a key, None if it is not kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made by `make` if it is not kept."""
        found = self.find(key)
        if found is not None:
            return found
        value = make()
        size = self._size_bytes(key, value)
        if size * 16 <= self._limit_bytes:
            with self._lock:
                self.kept_bytes += size - self._kept.pop(key, (value, 0))[1]
                self._kept[key] = value, size
                while self.kept_bytes > self._limit_bytes:
                    self.kept_bytes -= self._kept.popitem(last=False)[1][1]
        return value
