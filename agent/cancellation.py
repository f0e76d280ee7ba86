"""Cancellation: which one is meant for the run, and what is brought to its end all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

_Given = TypeVar("_Given")


class Cancellation:
    """Tells whether somebody asked the current task to end since `watch()`.

    A CancelledError alone does not tell it: it also comes out of anything that was cancelled elsewhere and is awaited
    here, and code in between may swallow one that was meant.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._before = task.cancelling()

    @classmethod
    async def watch(cls) -> Self:
        """Look from now on. A cancellation that was asked for earlier and is still to be delivered is raised here."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a coroutine runs in a task")
        if task.cancelling():
            await asyncio.sleep(0)
        return cls(task)

    @property
    def asked(self) -> bool:
        """Whether the task was asked to end."""
        return self._task.cancelling() > self._before

    def heed(self) -> None:
        """Raise CancelledError when the task was asked to end: something swallowed it."""
        if self.asked:
            raise asyncio.CancelledError


async def to_the_end(work: Coroutine[Any, Any, _Given]) -> _Given:
    """Return what `work` gives. A cancellation meanwhile is raised when the work has ended; a second one ends it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # the cancellation is what the caller must hear of
            await task
        raise
