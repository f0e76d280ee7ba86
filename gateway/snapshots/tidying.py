"""What gateways left that died in the midst of a snapshot or a fork is removed when the next one starts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from gateway.errors import AirlockError
from gateway.support.background import in_background

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def tidying(remove: Callable[[], Awaitable[None]], what: str) -> AsyncIterator[None]:
    """Do `remove` in the background, once; the block's end ends it. `what` it is about is logged."""

    async def work() -> None:
        try:
            await remove()
        except AirlockError as error:
            log.warning("unfinished work stays until the next start", of=what, error=str(error))

    async with in_background(work(), f"tidying: {what}"):
        yield
