"""Long loops in the event loop, in turns with everything else that runs there."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

_TURN = 1000
_Item = TypeVar("_Item")


async def in_turns(items: Iterable[_Item]) -> AsyncGenerator[_Item, None]:
    """Yield the items; let the event loop run after each thousand."""
    for number, item in enumerate(items, 1):
        if number % _TURN == 0:
            await asyncio.sleep(0)
        yield item
