"""Builds the engine that creates sandboxes, and the keeper that leases one to each thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from gateway.composition.engines import OpenedEngine, open_engine
from gateway.composition.foundation import Foundation
from gateway.composition.snapshot_place import open_place
from gateway.errors import AirlockError
from gateway.policy.document import QuotasSection
from gateway.sandboxes.counted_creation import CountedCreation, QuotasOf
from gateway.sandboxes.creation_in_threads import CreationInThreads
from gateway.sandboxes.history import HistoryWriter
from gateway.serving.health import Check
from gateway.snapshots.places import Place
from gateway.snapshots.volume_copies import Copies
from gateway.storage.database import identity_of
from gateway.storage.quota_store import QuotaStore
from gateway.storage.transition_store import TransitionStore
from gateway.support.background import Periodic
from gateway.telemetry import attributes as a
from gateway.telemetry.gauges import totalled, watched_disks
from gateway.telemetry.observed import ObservedCreation, ObservedLeases
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenants
from sandbox.engines.engine import Creator, Engine
from sandbox.engines.fair_creation import FairCreation
from sandbox.engines.pooled_sandbox import PoolKind, PoolSource
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.errors import SandboxError
from sandbox.keeper.leases import ImageGate, Leases
from sandbox.keeper.places import KeeperLimits
from sandbox.keeper.sandbox_keeper import SandboxKeeper

if TYPE_CHECKING:
    from sandbox.engines.docker.image_pulls import ImagePulls

# The number of tenants whose policies count; the pool also follows the actual demand of all.
_TENANTS = 64
# Policies rarely change, and an outdated pool costs a call only milliseconds.
_UPDATE_S = 30.0
log = structlog.get_logger(__name__)


def decorated_creation(
    engine: Engine,
    *,
    pooled: Callable[[Creator], SandboxPool] | None,
    pulls: ImagePulls | None,
    telemetry: Telemetry,
    quotas: Quotas,
    quotas_of: QuotasOf,
) -> tuple[Creator, SandboxPool | None]:
    """Return an engine's creation of sandboxes in all decorators, and its pool. None for `pooled` or `pulls` omits it.

    From the innermost out: tenants take turns, which the pool does not wait for when it makes its own sandboxes; a
    ready sandbox is claimed; a missing image is pulled; all this is timed; and it is counted, before it costs anything.
    """
    creator: Creator = FairCreation(engine)
    pool = None
    if pooled is not None:
        creator = pool = pooled(creator)
    if pulls is not None:
        from sandbox.engines.docker.image_pulls import PullingCreation  # noqa: PLC0415 - see engines.py

        creator = PullingCreation(creator, pulls)
    if telemetry.on:
        creator = ObservedCreation(creator, telemetry)
    return CountedCreation(creator, engine, quotas, quotas_of), pool


@contextlib.asynccontextmanager
async def filling_pool(pool: SandboxPool, base: Foundation) -> AsyncIterator[None]:
    """Fill the pool with what most policies and callers ask for, and report on it; drain it at the end of the block."""
    target = PoolTarget(pool, base.tenants, list(islice(base.config.tenants, _TENANTS)), base.config.sandbox.pool_min)
    await target.update()
    if base.telemetry.on:
        read = base.telemetry.instruments.read
        read("airlock.sandbox.pool", lambda: pool.counts, a.POOL_STATE)
        read("airlock.sandbox.pool.claims", lambda: pool.claims, a.POOL_CLAIM)
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
        self._pool, self._tenants, self._names, self._number = pool, tenants, names, number
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


@dataclass(frozen=True)
class Sandboxes:
    """The engine, its id, its sandboxes, and where their snapshots are.

    The id is None while the engine does not answer. `prepared` ends when sandboxes can be made, or not yet.
    """

    engine: Engine
    engine_id: str | None
    keeper: SandboxKeeper
    leases: Leases
    ping: Check
    snapshots: Place
    prepared: Awaitable[None]
    copies: Copies


async def open_sandboxes(stack: AsyncExitStack, base: Foundation) -> Sandboxes:
    """Take over the sandboxes that an earlier process left, and report what would fail the first call."""
    settings = base.config.sandbox
    history = HistoryWriter(TransitionStore(base.database), base.config.tenants)
    opened = await open_engine(stack, base, history.report)
    engine = opened.engine
    snapshots = await open_place(stack, base, await identity_of(base.database))
    creator, pool = _creation(opened, base)
    await stack.enter_async_context(history.writing(engine.id))
    keeps = settings.on_stop == "keep"
    stack.push_async_callback(engine.close, keep_sandboxes=keeps)
    left = await engine.reconcile()
    await stack.enter_async_context(history.completing(engine))
    limits = KeeperLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(KeeperLimits)})
    keeper = SandboxKeeper(engine, CreationInThreads(creator, base.store.is_open), limits)
    stack.push_async_callback(keeper.close, keep_sandboxes=keeps, remove_workspaces=not settings.keep_workspaces)
    await keeper.adopt(left)
    await stack.enter_async_context(totalled(base.telemetry, keeper))
    await _watch_disks(stack, base, opened)
    prepared = await stack.enter_async_context(_preparing(engine))
    if pool is not None:
        await stack.enter_async_context(filling_pool(pool, base))
    leases: Leases = ImageGate(keeper)
    if base.telemetry.on:
        base.telemetry.instruments.read("airlock.sandbox.live", lambda: keeper.live)
        base.telemetry.instruments.read("airlock.sandbox.states", keeper.states, a.SANDBOX_STATE)
        leases = ObservedLeases(leases, base.telemetry)
    engine_id = None
    with contextlib.suppress(SandboxError):
        engine_id = await engine.id()
    return Sandboxes(engine, engine_id, keeper, leases, engine.ping, snapshots, prepared, Copies(opened.copies))


@contextlib.asynccontextmanager
async def _preparing(engine: Engine) -> AsyncIterator[Awaitable[None]]:
    """Prepare an engine while other parts are built; what it makes is not left half made at the end of the block."""

    async def prepare() -> None:
        try:
            await engine.prepare()
        except SandboxError as error:  # the operator can fix it while the gateway runs
            log.warning("no sandbox can be created", error=str(error))

    task = asyncio.create_task(prepare(), name="preparing the engine")
    try:
        yield task
    finally:
        await asyncio.wait({task})


async def _watch_disks(stack: AsyncExitStack, base: Foundation, opened: OpenedEngine) -> None:
    reserve_bytes = base.config.sandbox.disk_reserve_mib * 1024 * 1024
    state_dir = base.config.path(base.config.state_dir)
    watched = watched_disks(base.telemetry, opened.free_bytes, state_dir, reserve_bytes=reserve_bytes)
    await stack.enter_async_context(watched)


def _creation(opened: OpenedEngine, base: Foundation) -> tuple[Creator, SandboxPool | None]:
    settings, pulls = base.config.sandbox, opened.pulls

    def pooled(source: PoolSource, creator: Creator) -> SandboxPool:
        if pulls is None:
            return SandboxPool(creator, opened.engine, source, limit=settings.pool_limit)
        from sandbox.engines.docker.image_pulls import pullable  # noqa: PLC0415 - see engines.py

        return SandboxPool(creator, opened.engine, source, limit=settings.pool_limit, pulls=pullable)

    async def quotas_of(tenant: str) -> QuotasSection:
        return (await base.tenants.named(tenant)).policy.document.quotas

    return decorated_creation(
        opened.engine,
        pooled=None if opened.pool is None else partial(pooled, opened.pool),
        pulls=pulls,
        telemetry=base.telemetry,
        quotas=Quotas(QuotaStore(base.database, base.process_id)),
        quotas_of=quotas_of,
    )
