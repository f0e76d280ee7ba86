"""Runs work in the background, repeats it, and retries database reads."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gateway.errors import Unavailable

log = structlog.get_logger(__name__)
_FIRST_RETRY_S = 0.05
T = TypeVar("T")


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` in a task of that name; the end of the block cancels it and waits for its end."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def pause(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, but not longer than the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


@dataclass(frozen=True)
class Periodic:
    """Runs `work` every `every_s` seconds. A round that fails is logged as `failed`; the next round tries again.

    An error of the types in `expected` is logged on one line at `level`, any other with its traceback.
    """

    work: Callable[[], Awaitable[object]]
    every_s: float
    failed: str
    expected: tuple[type[Exception], ...] = ()
    level: int = logging.WARNING

    def running(self, name: str, *, at_once: bool = True) -> AbstractAsyncContextManager[None]:
        """Repeat the work in a task of that name until the block ends; `at_once` starts with a round."""
        return in_background(self.repeat(at_once=at_once), name)

    async def repeat(self, *, at_once: bool = True) -> None:
        if not at_once:
            await asyncio.sleep(self.every_s)
        while True:
            await self.once()
            await asyncio.sleep(self.every_s)

    async def once(self) -> None:
        try:
            await self.work()
        except self.expected as error:
            log.log(self.level, self.failed, error=str(error)[:300] or type(error).__name__)
        except Exception:
            log.exception(self.failed)


async def retried(read: Callable[[], Awaitable[T]], *, run_id: str, what: str) -> T:
    """Return the result of a read, repeated while it raises Unavailable.

    The first failure is logged with the run that is delayed and `what` it waits for.
    """
    wait_s = _FIRST_RETRY_S
    while True:
        try:
            return await read()
        except Unavailable as error:
            if wait_s == _FIRST_RETRY_S:
                log.warning("a run is delayed", run_id=run_id, waits_for=what, error=str(error))
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, 2.0)
