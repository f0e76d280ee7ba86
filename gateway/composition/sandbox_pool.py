"""The pool: which sandboxes are always ready, and what is told of them."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from gateway.composition.foundation import Foundation
from gateway.telemetry import attributes as a
from sandbox.pooled_engine import PooledEngine
from sandbox.spares import SpareKind

# So many tenants are asked what their policies say; the others count by what they ask for.
_TENANTS = 64


async def begin_pool(pool: PooledEngine, on: Foundation) -> None:
    """Have the pool make what most policies ask for, and then what is asked for; and tell how it does."""
    specs = [(await on.tenants.named(name)).sandbox_spec("") for name in islice(on.config.tenants, _TENANTS)]
    asked = Counter(SpareKind.of(spec) for spec in specs if not spec.refused)
    for kind, _ in asked.most_common(1):
        pool.keep(kind, on.config.sandbox.pool_min)
    if on.telemetry.on:
        read = on.telemetry.instruments.read
        read("airlock.sandbox.pool", lambda: [(n, {a.POOL_STATE: state}) for state, n in pool.spares.items()])
        read("airlock.sandbox.pool.claims", lambda: [(n, {a.POOL_CLAIM: how}) for how, n in pool.claims.items()])
    pool.begin()
