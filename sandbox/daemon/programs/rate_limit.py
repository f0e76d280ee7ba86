"""How fast the output of background processes is taken, all of them together.

Nobody waits for most of it, so taking it as fast as `yes` writes would only burn the processor, and a server that is
always busy gets its turn late among hundreds of tool processes. A program that is faster waits in its write, as for a
slow terminal.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_BYTES_PER_S = 128 * 1024 * 1024
# Taking a piece costs as much as so many bytes more.
_PIECE_BYTES = 16 * 1024
_BURST_S = 0.02


class Source(Protocol):
    """What output is taken from."""

    def pause(self) -> None:
        """Take nothing for now."""

    def resume(self) -> None:
        """Go on."""


class RateLimit:
    """Shared by all sources."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._hurried: set[Source] = set()

    def took(self, source: Source, size: int) -> None:
        """Count a piece that was taken just now; its source pauses when all together are too fast."""
        now_s = self._loop.time()
        self._due_s = max(self._due_s, now_s) + (size + _PIECE_BYTES) / _BYTES_PER_S
        if self._due_s - now_s > _BURST_S and source not in self._hurried:
            source.pause()
            self._loop.call_at(self._due_s, source.resume)

    def hurry(self, source: Source) -> None:
        """Take from a source without pausing, until calm(): its writer is over, and what it left is bounded."""
        self._hurried.add(source)
        source.resume()

    def calm(self, source: Source) -> None:
        """Let a source have its pauses again."""
        self._hurried.discard(source)
