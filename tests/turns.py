"""Counts the turns of the event loop, to see whether anything keeps it to itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Turns:
    """`count` turns of the event loop; `most` is how often seen() was called in one of them."""

    def __init__(self) -> None:
        self.count = self.most = 0
        self._in_turn = 0

    def seen(self) -> None:
        self._in_turn += 1
        self.most = max(self.most, self._in_turn)

    async def count_on(self) -> None:
        while True:
            self.count += 1
            self._in_turn = 0
            await asyncio.sleep(0)


@asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    counted = Turns()
    counting = asyncio.create_task(counted.count_on())
    await asyncio.sleep(0)
    try:
        yield counted
    finally:
        counting.cancel()
        with suppress(asyncio.CancelledError):
            await counting
