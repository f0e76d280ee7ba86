"""Retries database reads until they succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from gateway.errors import Unavailable

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
T = TypeVar("T")
log = structlog.get_logger(__name__)


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
        wait_s = min(2 * wait_s, _LAST_RETRY_S)
