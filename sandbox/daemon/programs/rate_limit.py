"""Limits how fast the output of all background processes together is read.

Most of it is never read by a caller, so reading as fast as `yes` writes would waste processor time and delay the server
among hundreds of tool processes. A faster program blocks in its write, as with a slow terminal.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_BYTES_PER_S = 128 * 1024 * 1024
# Reading a piece costs as much as so many bytes.
_PIECE_BYTES = 16 * 1024
_BURST_S = 0.02


class Source(Protocol):
    """A stream that can be paused."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class RateLimit:
    """Shared by all sources."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._exempt: set[Source] = set()

    def took(self, source: Source, size: int) -> None:
        """Count a piece that was read; its source is paused if all together are too fast."""
        now_s = self._loop.time()
        self._due_s = max(self._due_s, now_s) + (size + _PIECE_BYTES) / _BYTES_PER_S
        if self._due_s - now_s > _BURST_S and source not in self._exempt:
            source.pause()
            self._loop.call_at(self._due_s, source.resume)

    def exempt(self, source: Source) -> None:
        """Do not pause a source, until include(): its writer has ended, so what is left is bounded."""
        self._exempt.add(source)
        source.resume()

    def include(self, source: Source) -> None:
        """Pause a source again when needed."""
        self._exempt.discard(source)
