"""Pieces of text, joined into fewer and larger ones with little delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_INTERVAL_S = 0.05
_LIMIT_CHARS = 4096
_TOTAL_CHARS = 262_144


class Coalescer:
    """Delivers text in order: when enough is buffered, after an interval, and at flush(). Past a total it says so."""

    def __init__(self, deliver: Callable[[str], None]) -> None:
        self._deliver = deliver
        self._left_chars = _TOTAL_CHARS
        self._pieces: list[str] = []
        self._buffered_chars = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether anything is buffered."""
        return bool(self._pieces)

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
