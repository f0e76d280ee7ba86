"""The pool: which sandboxes are always ready, by what the policies in force ask for, and what is told of them."""

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

# So many tenants are asked what their policies say; the others count by what they ask for.
_TENANTS = 64
# Policies change seldom, and a pool that is late costs a call some milliseconds.
_LOOK_S = 30.0


@contextlib.asynccontextmanager
async def filling_pool(pool: SandboxPool, on: Foundation) -> AsyncIterator[None]:
    """Fill the pool with what most policies and callers ask for, and report on it; drain it at the end of the block."""
    most = MostAsked(pool, on.tenants, list(islice(on.config.tenants, _TENANTS)), on.config.sandbox.pool_min)
    await most.look()
    if on.telemetry.on:
        read = on.telemetry.instruments.read
        read("airlock.sandbox.pool", lambda: [(n, {a.POOL_STATE: state}) for state, n in pool.counts.items()])
        read("airlock.sandbox.pool.claims", lambda: [(n, {a.POOL_CLAIM: how}) for how, n in pool.claims.items()])
    pool.begin()
    looks = Periodic(most.look, _LOOK_S, "what the pool always has was not looked at")
    try:
        async with looks.running("what the pool always has", at_once=False):
            yield
    finally:
        await pool.drain()


class MostAsked:
    """Has a pool keep `number` sandboxes of the kind that most of some tenants' policies ask for, and of no other."""

    def __init__(self, pool: SandboxPool, tenants: Tenants, names: Collection[str], number: int) -> None:
        self._pool = pool
        self._tenants = tenants
        self._names = names
        self._number = number
        self._kind: PoolKind | None = None

    async def look(self) -> None:
        """Look at what is in force now. A policy that is not to be had says nothing: its tenant's calls are told."""
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
