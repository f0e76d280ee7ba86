"""Streams between a client and a call: a bounded wait for messages, and a queue that a task fills."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from gateway.errors import DeadlineExceeded

STALL_LIMIT_S = 60.0
T = TypeVar("T")


async def in_time(awaited: Awaitable[T], problem: str = "nothing moved", advice: str = "start the transfer again") -> T:
    """Return what is awaited; DeadlineExceeded if the peer stalls, which must not occupy a sandbox forever."""
    try:
        async with asyncio.timeout(STALL_LIMIT_S):
            return await awaited
    except TimeoutError:
        raise DeadlineExceeded(f"{problem} for {STALL_LIMIT_S:g} s; {advice}") from None


@contextlib.asynccontextmanager
async def queued(queue: asyncio.Queue[T | None], *tasks: asyncio.Task[Any]) -> AsyncIterator[AsyncIterator[T]]:
    """Iterate over a queue, up to None, while tasks fill it; the block's end cancels the tasks."""

    async def items() -> AsyncIterator[T]:
        while (item := await queue.get()) is not None:
            yield item

    try:
        yield items()
    finally:
        for task in tasks:
            task.cancel()
        while not queue.empty():  # a task that waits for a free slot must see that it was cancelled
            queue.get_nowait()
        await asyncio.gather(*tasks, return_exceptions=True)
