"""Counts the bytes that move to and from background processes, which are no part of a call, in `bytes_per_day`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from agent.cancellation import to_the_end
from gateway.errors import Unavailable
from gateway.tenancy.quotas import BYTES, Quotas
from gateway.tenancy.tenants import Tenant

# Each count is a transaction, so bytes are added up; a stream may last for days, so they are counted in between, too.
_SUM_BYTES = 16 * 1024 * 1024
log = structlog.get_logger(__name__)


@asynccontextmanager
async def counted_bytes(
    quotas: Quotas, tenant: Tenant, size_bytes: int = 1
) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Yield what counts bytes that have moved.

    Raises QuotaExceeded if the day's bytes are used up: before the block, unless `size_bytes`, of all that will move,
    is 0, and in it after a sum.
    """
    uncounted = 0

    async def count() -> None:
        nonlocal uncounted
        size_bytes = uncounted
        await quotas.add(tenant.name, tenant.policy.document.quotas, {BYTES: size_bytes})
        uncounted -= size_bytes

    async def moved(size_bytes: int) -> None:
        nonlocal uncounted
        uncounted += size_bytes
        if uncounted >= _SUM_BYTES:
            await to_the_end(count())
            await quotas.check_bytes(tenant.name, tenant.policy.document.quotas)

    if size_bytes:
        await quotas.check_bytes(tenant.name, tenant.policy.document.quotas)
    try:
        yield moved
    finally:
        if uncounted:
            try:
                await to_the_end(count())
            except Unavailable as error:  # what was moved was moved: the caller must not do it again
                log.warning("bytes are not counted", tenant=tenant.name, bytes=uncounted, error=str(error))
