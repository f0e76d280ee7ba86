"""Values that the hooks of one tool call share. A hook object serves many calls at once, so it stores none of them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """The key of a value in a CallContext, created once at module level; `name` is for debugging."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"


class CallContext:
    """Values of one tool call, from its first hook to its last. Never stored, never shown to a model."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Slot[Any], Any] = {}

    def get(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.get(slot)
        return value

    def set(self, slot: Slot[T], value: T) -> None:
        self._values[slot] = value

    def pop(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.pop(slot, None)
        return value
