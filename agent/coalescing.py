"""Gathers small pieces of text into fewer, larger events, without keeping a watcher waiting for long.

A Coalescer makes the events of a run; `merged` joins those that wait for somebody slow, such as a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.events import Event

PIECES = frozenset({"model_delta", "tool_output"})
"""Events that may be joined, or dropped when too many wait: model_finished and tool_call_finished tell all again."""

_MERGED_LIMIT_CHARS = 16_384


def merged(earlier: Event, later: Event) -> Event | None:
    """Return two neighbouring events as one, None when they are not pieces of the same text or it becomes too long."""
    text = "text"
    if later.type not in PIECES or earlier.type != later.type:
        return None
    if {**earlier.payload, text: ""} != {**later.payload, text: ""}:
        return None
    joined = f"{earlier.payload[text]}{later.payload[text]}"
    if len(joined) > _MERGED_LIMIT_CHARS:
        return None
    return Event(earlier.type, {**earlier.payload, text: joined})


class Coalescer:
    """Hands text on when there is much of it, when `interval_s` has passed, or at flush(); in order, nothing lost.

    Past `total_chars` it says once that the rest is not shown, so that no writer makes an event log grow without end.
    """

    def __init__(
        self,
        deliver: Callable[[str], None],
        *,
        interval_s: float = 0.05,
        limit_chars: int = 4096,
        total_chars: int = 262_144,
    ) -> None:
        self._deliver = deliver
        self._interval_s = interval_s
        self._limit_chars = limit_chars
        self._left_chars = total_chars
        self._pieces: list[str] = []
        self._held_chars = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Take a piece."""
        if not text or self._left_chars < 0:
            return
        self._left_chars -= len(text)
        if self._left_chars < 0:
            text = text[: self._left_chars] + "\n[the rest of the output is not shown live]\n"
        self._pieces.append(text)
        self._held_chars += len(text)
        if self._held_chars >= self._limit_chars:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.flush)

    def flush(self) -> None:
        """Hand on what is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._held_chars = 0
            self._deliver(text)
