"""Tasks in the background that their owner waits for before it closes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class BackgroundTasks:
    """A set of running tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, _Value]) -> asyncio.Task[_Value]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Wait until no task is left, those that begin meanwhile included."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


async def over(work: asyncio.Future[Any] | None) -> None:
    """Wait for the end of work, however it ends; None is over."""
    if work is not None:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio does not log it
