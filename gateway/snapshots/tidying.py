"""Removes what gateways left of snapshots and forks when they died, at the next start."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from gateway.errors import AirlockError
from gateway.support.background import in_background

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def tidying(remove: Callable[[], Awaitable[None]], what: str) -> AsyncIterator[None]:
    """Run `remove` once in the background; the block's end cancels it. `what` it is about is logged."""

    async def work() -> None:
        try:
            await remove()
        except AirlockError as error:
            log.warning("unfinished work stays until the next start", of=what, error=str(error))

    async with in_background(work(), f"tidying: {what}"):
        yield
