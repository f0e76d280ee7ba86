"""Runs the pool: keeps ready the sandboxes that most policies in force ask for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection
from itertools import islice

from gateway.composition.foundation import Foundation
from gateway.errors import AirlockError
from gateway.support.periodic import Periodic
from gateway.telemetry import attributes as a
from gateway.tenancy.tenants import Tenants
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.sandbox_pool import SandboxPool

# The number of tenants whose policies count; the pool also follows the actual demand of all.
_TENANTS = 64
# Policies rarely change, and an outdated pool costs a call only milliseconds.
_UPDATE_S = 30.0


@contextlib.asynccontextmanager
async def filling_pool(pool: SandboxPool, base: Foundation) -> AsyncIterator[None]:
    """Fill the pool with what most policies and callers ask for, and report on it; drain it at the end of the block."""
    target = PoolTarget(pool, base.tenants, list(islice(base.config.tenants, _TENANTS)), base.config.sandbox.pool_min)
    await target.update()
    if base.telemetry.on:
        read = base.telemetry.instruments.read
        read("airlock.sandbox.pool", lambda: [(n, {a.POOL_STATE: state}) for state, n in pool.counts.items()])
        read("airlock.sandbox.pool.claims", lambda: [(n, {a.POOL_CLAIM: how}) for how, n in pool.claims.items()])
    pool.begin()
    updates = Periodic(target.update, _UPDATE_S, "the pool's target was not updated")
    try:
        async with updates.running("pool target", at_once=False):
            yield
    finally:
        await pool.drain()


class PoolTarget:
    """Makes a pool keep `number` sandboxes of the kind that most policies of the named tenants ask for."""

    def __init__(self, pool: SandboxPool, tenants: Tenants, names: Collection[str], number: int) -> None:
        self._pool = pool
        self._tenants = tenants
        self._names = names
        self._number = number
        self._kind: PoolKind | None = None

    async def update(self) -> None:
        """Follow the policies in force. One that does not load is skipped; its tenant's calls get the error."""
        asked: Counter[PoolKind] = Counter()
        for name in self._names:
            with contextlib.suppress(AirlockError):
                spec = (await self._tenants.named(name)).sandbox_spec("")
                if not spec.refused:
                    asked[PoolKind.of(spec)] += 1
        most = max(asked, key=asked.__getitem__, default=None)
        if most == self._kind:
            return
        if self._kind is not None:
            self._pool.forget(self._kind)
        if most is not None:
            self._pool.keep(most, self._number)
        self._kind = most
