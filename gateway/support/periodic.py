"""Background work that repeats, and survives a round that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import structlog

from gateway.support.background import in_background

_ERROR_CHARS = 300
log = structlog.get_logger(__name__)


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

    @contextlib.asynccontextmanager
    async def running(self, name: str, *, at_once: bool = True) -> AsyncIterator[None]:
        """Repeat the work in a task of that name until the block ends; `at_once` starts with a round."""
        async with in_background(self.repeat(at_once=at_once), name):
            yield

    async def repeat(self, *, at_once: bool = True) -> None:
        """Repeat the work until cancelled."""
        if not at_once:
            await asyncio.sleep(self.every_s)
        while True:
            await self.once()
            await asyncio.sleep(self.every_s)

    async def once(self) -> None:
        """Run one round."""
        try:
            await self.work()
        except self.expected as error:
            log.log(self.level, self.failed, error=str(error)[:_ERROR_CHARS] or type(error).__name__)
        except Exception:
            log.exception(self.failed)
