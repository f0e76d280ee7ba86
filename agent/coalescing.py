"""Joins small pieces of text into fewer, larger events, with little delay.

A Coalescer creates the events of a run; `merged` joins events that wait for a slow consumer, such as a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.events import Event

PIECES = frozenset({"model_delta", "tool_output"})
"""Events that may be joined, or dropped when too many wait: model_finished and tool_call_finished repeat the text."""

_MERGED_LIMIT_CHARS = 16_384
_INTERVAL_S = 0.05
_LIMIT_CHARS = 4096
_TOTAL_CHARS = 262_144


def merged(earlier: Event, later: Event) -> Event | None:
    """Return two adjacent events as one; None if they are not pieces of one text, or together too long."""
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
    """Delivers text in order: when enough is buffered, after an interval, and at flush(). Past a total it says so."""

    def __init__(self, deliver: Callable[[str], None]) -> None:
        self._deliver = deliver
        self._left_chars = _TOTAL_CHARS
        self._pieces: list[str] = []
        self._buffered_chars = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        if not text or self._left_chars < 0:
            return
        self._left_chars -= len(text)
        if self._left_chars < 0:
            text = text[: self._left_chars] + "\n[the rest of the output is not shown live]\n"
        self._pieces.append(text)
        self._buffered_chars += len(text)
        if self._buffered_chars >= _LIMIT_CHARS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._buffered_chars = 0
            self._deliver(text)
