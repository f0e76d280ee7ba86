"""Buffers the output of a call for a client that may be slow: pieces that wait are merged.

A program that prints byte by byte then costs the memory of its bytes, which the limit of a result bounds, and not that
of as many messages.
"""

import asyncio
from collections import deque


class OutputPieces:
    """A queue of pieces: put from callbacks, taken by one reader."""

    def __init__(self, piece_limit_bytes: int = 256 * 1024) -> None:
        self._piece_limit_bytes = piece_limit_bytes
        self._pieces: deque[tuple[str, bytearray]] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, stream: str, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[0] == stream and len(last[1]) + len(data) <= self._piece_limit_bytes:
            last[1].extend(data)
        else:
            self._pieces.append((stream, bytearray(data)))
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def take(self) -> tuple[str, bytes] | None:
        """Return the next piece, or None at the end."""
        while not self._pieces:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        stream, data = self._pieces.popleft()
        return stream, bytes(data)
