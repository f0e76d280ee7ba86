"""What the hooks of one tool call share: a hook serves many calls at once, and keeps nothing of them in itself."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """The key of one value in a CallContext. Make it once, at module level; `name` is for people."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"


class CallContext:
    """Values of one tool call, from its first hook to its last. Never stored, and never shown to a model."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Slot[Any], Any] = {}

    def get(self, slot: Slot[T]) -> T | None:
        """Return a value, None where there is none."""
        value: T | None = self._values.get(slot)
        return value

    def set(self, slot: Slot[T], value: T) -> None:
        """Keep a value, in place of one that is there."""
        self._values[slot] = value

    def pop(self, slot: Slot[T]) -> T | None:
        """Return a value and forget it."""
        value: T | None = self._values.pop(slot, None)
        return value
