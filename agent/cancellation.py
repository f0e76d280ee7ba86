"""Whether this task was cancelled, ending other tasks, and work that finishes regardless or has a time limit."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import Any, Self, TypeVar, cast

_Result = TypeVar("_Result")


class Cancellation:
    """Detects whether the current task was cancelled since `watch()`.

    CancelledError alone is not enough: awaiting anything that was cancelled elsewhere raises it too, and code in
    between may swallow the one for this task.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self._before = task.cancelling()

    @classmethod
    async def watch(cls) -> Self:
        """Start watching. Raises a cancellation that was requested earlier and not delivered yet."""
        task: Any = asyncio.current_task()  # a coroutine always runs in one
        if task.cancelling():
            await asyncio.sleep(0)
        return cls(task)

    @property
    def asked(self) -> bool:
        return self.task.cancelling() > self._before

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


async def in_own_task(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`. A cancellation cancels it, and is raised at once."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: the caller may be gone
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        raise


async def ended(*tasks: asyncio.Future[Any]) -> list[Any]:
    """Cancel tasks, wait for their ends, and return their results or errors."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


class TimeLeft:
    """Cancels what its block waits for when the time is over: the block ends without an error and `over` is set.

    A run that is being cancelled is not cancelled again when its time ends, and a cancellation that comes after the
    time is over still counts.
    """

    def __init__(self, left_s: float) -> None:
        self.over = False
        self._left_s = left_s

    async def __aenter__(self) -> Self:
        self._cancellation = await Cancellation.watch()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._left_s), self._end) if self._left_s < math.inf else None
        return self

    def _end(self) -> None:
        if not self._cancellation.asked:
            self.over = True
            self._cancellation.task.cancel()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if not self.over:
            return False
        self._cancellation.task.uncancel()
        # Also an error: a driver may answer a cancellation with one, and the run is over anyway.
        return isinstance(error, Exception | asyncio.CancelledError) and not self._cancellation.asked


async def within(due_s: float, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`, which is cancelled at `due_s`, as loop.time(), unless it never waits."""
    if not isinstance(work, CoroutineType):
        async with asyncio.timeout_at(due_s):
            return await work
    try:
        waits_for = work.send(None)
    except StopIteration as stop:
        return cast(_Result, stop.value)
    async with asyncio.timeout_at(due_s):
        return await _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, _Result], waits_for: object) -> Generator[Any, Any, _Result]:
    """Run a coroutine that has started and waits for something."""
    while True:
        try:
            try:
                yield waits_for
            except BaseException as error:  # a cancellation, the end of this generator, or an error of what it awaits
                waits_for = work.throw(error)
            else:
                waits_for = work.send(None)
        except StopIteration as stop:
            return cast(_Result, stop.value)
