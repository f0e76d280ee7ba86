"""Counts the bytes that move to and from background processes, which are no part of a call, in `bytes_per_day`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from agent.cancellation import to_the_end
from gateway.tenancy.quotas import BYTES, Quotas
from gateway.tenancy.tenants import Tenant

# A stream may last for days, so it is counted in sums: each costs a transaction.
_SUM_BYTES = 16 * 1024 * 1024


@asynccontextmanager
async def counted_bytes(quotas: Quotas, tenant: Tenant) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Yield what counts bytes that have moved.

    Raises QuotaExceeded if the day's bytes are used up: before the block, and in it after a sum.
    """
    uncounted = 0

    async def count() -> None:
        nonlocal uncounted
        size_bytes, uncounted = uncounted, 0
        await quotas.add(tenant.name, tenant.policy.document.quotas, {BYTES: size_bytes})

    async def moved(size_bytes: int) -> None:
        nonlocal uncounted
        uncounted += size_bytes
        if uncounted >= _SUM_BYTES:
            await to_the_end(count())
            await quotas.check_bytes(tenant.name, tenant.policy.document.quotas)

    await quotas.check_bytes(tenant.name, tenant.policy.document.quotas)
    try:
        yield moved
    finally:
        if uncounted:
            await to_the_end(count())
