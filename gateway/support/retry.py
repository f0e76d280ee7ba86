"""Patience with a database that does not answer: what must be read is read again until it is."""

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
    """Return what a read gives, again and again while it raises Unavailable, until cancelled.

    It is told once, with the run that does not go on meanwhile, and `what` it waits for.
    """
    wait_s = _FIRST_RETRY_S
    while True:
        try:
            return await read()
        except Unavailable as error:
            if wait_s == _FIRST_RETRY_S:
                log.warning("a run does not go on yet", run_id=run_id, waits_for=what, error=str(error))
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LAST_RETRY_S)
