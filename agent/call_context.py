"""One tool call: whose it is, its clock, and what its hooks share. A hook serves many calls at once and stores none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """The key of a value in a CallContext, created once at module level; `name` is for debugging."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"


@dataclass(frozen=True, eq=False)
class CallContext:
    """What is known of one tool call from its first hook to its last. Never stored, never shown to a model.

    `run_id` and `request_id` are "" for a call without one. `clock`, in seconds, measures durations, from `started_s`.
    `resumed`: its step began in an earlier process. Hooks share values by slot.
    """

    tenant: str = ""
    thread: str = ""
    run_id: str = ""
    request_id: str = ""
    clock: Callable[[], float] = time.monotonic
    started_s: float = 0.0
    resumed: bool = False
    _values: dict[Slot[Any], Any] = field(default_factory=dict, repr=False)

    def of_call(self, *, resumed: bool = False) -> CallContext:
        """Return a context for one call, with the values that are set here."""
        return replace(self, resumed=resumed, _values=dict(self._values))

    def get(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.get(slot)
        return value

    def set(self, slot: Slot[T], value: T) -> None:
        self._values[slot] = value

    def pop(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.pop(slot, None)
        return value
