"""Cancellation: whether this task was cancelled, and work that finishes regardless."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

_Result = TypeVar("_Result")


class Cancellation:
    """Detects whether the current task was cancelled since `watch()`.

    CancelledError alone is not enough: awaiting anything that was cancelled elsewhere raises it too, and code in
    between may swallow the one for this task.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._before = task.cancelling()

    @classmethod
    async def watch(cls) -> Self:
        """Start watching. Raises a cancellation that was requested earlier and not delivered yet."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a coroutine runs in a task")
        if task.cancelling():
            await asyncio.sleep(0)
        return cls(task)

    @property
    def asked(self) -> bool:
        return self._task.cancelling() > self._before

    def heed(self) -> None:
        """Raise CancelledError if the task was cancelled and something swallowed the error."""
        if self.asked:
            raise asyncio.CancelledError


async def to_the_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`. A cancellation is raised after the work has finished; a second one cancels it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # the cancellation takes precedence
            await task
        raise
