"""Builds the engine that creates sandboxes, and the keeper that leases one to each thread."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.composition.creation import Creation, decorated_creation
from gateway.composition.foundation import Foundation
from gateway.composition.sandbox_pool import filling_pool
from gateway.policy.document import QuotasSection
from gateway.sandboxes.channel_claim import channel_use, claim_channels
from gateway.sandboxes.history_writer import HistoryWriter
from gateway.serving.database_lock import locked_for
from gateway.serving.health import Check
from gateway.storage.channel_store import ChannelStore
from gateway.storage.database_identity import identity_of
from gateway.storage.quota_store import QuotaStore
from gateway.storage.transition_store import TransitionStore
from gateway.telemetry.disks import watched_disks
from gateway.telemetry.observed_sandboxes import ObservedLeases, observe_states
from gateway.telemetry.sandbox_totals import totalled
from gateway.tenancy.quotas import Quotas
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_disk import EngineDisk
from sandbox.engines.docker.image_pulls import ImagePulls, pullable
from sandbox.engines.engine import Creator, Engine
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_sandbox import PoolSource
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.errors import SandboxError
from sandbox.keeper.keeper import ImageGate, Keeper, Leases
from sandbox.keeper.sandbox_keeper import KeeperLimits, SandboxKeeper

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sandboxes:
    """The engine, its id, and its sandboxes. The id is None while the engine does not answer."""

    engine: Engine
    engine_id: str | None
    keeper: Keeper
    leases: Leases
    ping: Check


async def open_sandboxes(stack: AsyncExitStack, base: Foundation) -> Sandboxes:
    """Take over the sandboxes that an earlier process left, and report what would fail the first call."""
    settings = base.config.sandbox
    history = HistoryWriter(TransitionStore(base.database), base.config.tenants)
    engine = _engine(base, history)
    await _claim_directories(stack, base, engine)
    creation = _creation(stack, engine, base)
    await stack.enter_async_context(history.writing(engine.id))
    keeps = settings.on_stop == "keep"
    stack.push_async_callback(engine.close, keep_sandboxes=keeps)
    left = await engine.reconcile()
    await stack.enter_async_context(history.completing(engine))
    keeper = SandboxKeeper(
        engine,
        creation.creator,
        KeeperLimits(
            idle_timeout_s=settings.idle_timeout_s,
            max_live=settings.max_live,
            max_live_per_tenant=settings.max_live_per_tenant,
            stopped_timeout_s=settings.stopped_timeout_s,
            max_stopped=settings.max_stopped,
        ),
    )
    stack.push_async_callback(keeper.close, keep_sandboxes=keeps, remove_workspaces=not settings.keep_workspaces)
    await keeper.adopt(left)
    await stack.enter_async_context(totalled(base.telemetry, keeper))
    await _watch_disks(stack, base)
    await _warn_of_missing_parts(engine)
    if creation.pool is not None:
        await stack.enter_async_context(filling_pool(creation.pool, base))
    leases: Leases = ImageGate(keeper)
    if base.telemetry.on:
        observe_states(keeper, base.telemetry)
        leases = ObservedLeases(leases, base.telemetry)
    return Sandboxes(engine, await _engine_id(engine), keeper, leases, engine.ping)


def _engine(base: Foundation, history: HistoryWriter) -> DockerEngine | MemoryEngine:
    """Return the configured engine."""
    config, settings = base.config, base.config.sandbox
    if settings.engine == "memory":
        log.warning("sandbox.engine is memory: every command runs on this machine, unconfined, as the gateway's user")
        root = config.path(config.state_dir) / "memory"
        return MemoryEngine(root=root, lifetime_s=settings.lifetime_s, on_transition=history.report)
    return DockerEngine(
        instance=base.instance,
        channel_root=config.resolved_channel_dir(),
        runtime_image=settings.runtime_image,
        requests=_requests(base),
        lifetime_s=settings.lifetime_s,
        on_transition=history.report,
    )


def _requests(base: Foundation) -> DockerRequests:
    return DockerRequests(base.config.sandbox.engine_url, "sandbox.engine_url of the configuration")


async def _claim_directories(stack: AsyncExitStack, base: Foundation, engine: DockerEngine | MemoryEngine) -> None:
    """Refuse directories of another engine or database, before anything in them counts as an orphan."""
    database = await identity_of(base.database)
    if isinstance(engine, DockerEngine):
        channels = base.config.resolved_channel_dir()
        requests = _requests(base)
        try:
            use = await channel_use(requests, await engine.id(), base.instance, channels)
        finally:
            requests.close()
        engine.boot.channels_identity = await claim_channels(use, ChannelStore(base.database))
        stack.enter_context(locked_for(channels, base.instance, database))
    snapshots = base.config.resolved_snapshots_dir()
    try:
        stack.enter_context(locked_for(snapshots, base.instance, database))
    except OSError as error:
        log.warning("no snapshot can be taken", directory=str(snapshots), error=str(error))


async def _watch_disks(stack: AsyncExitStack, base: Foundation) -> None:
    """Watch the engine's disk and the state directory's."""
    settings = base.config.sandbox
    free = None
    if settings.engine != "memory":
        requests = _requests(base)
        stack.callback(requests.close)
        free = EngineDisk(requests).free_bytes
    reserve_bytes = settings.disk_reserve_mib * 1024 * 1024
    state_dir = base.config.path(base.config.state_dir)
    await stack.enter_async_context(watched_disks(base.telemetry, free, state_dir, reserve_bytes=reserve_bytes))


def _creation(stack: AsyncExitStack, engine: DockerEngine | MemoryEngine, base: Foundation) -> Creation:
    """Return the creation of sandboxes with the configured decorators."""
    settings, pulls = base.config.sandbox, None
    if settings.engine != "memory" and settings.pull != "never":
        requests = _requests(base)
        pulls = ImagePulls(requests, wait_s=settings.pull_wait_s, timeout_s=settings.pull_timeout_s)
        stack.callback(pulls.close)

    def pooled(source: PoolSource, creator: Creator) -> SandboxPool:
        pulled = pullable if pulls is not None else lambda _: False
        return SandboxPool(creator, engine, source, limit=settings.pool_limit, pulls=pulled)

    async def quotas_of(tenant: str) -> QuotasSection:
        return (await base.tenants.named(tenant)).policy.document.quotas

    return decorated_creation(
        engine,
        pooled=partial(pooled, engine.pool) if isinstance(engine, DockerEngine) and settings.pool_limit else None,
        pulls=pulls,
        telemetry=base.telemetry,
        quotas=Quotas(QuotaStore(base.database, base.process_id)),
        quotas_of=quotas_of,
    )


async def _engine_id(engine: Engine) -> str | None:
    """Return the engine's id; None if it does not answer."""
    try:
        return await engine.id()
    except SandboxError:
        return None


async def _warn_of_missing_parts(engine: Engine) -> None:
    """Log at the start what would fail the first call; the operator can fix it while the gateway runs."""
    try:
        await engine.prepare()
    except SandboxError as error:
        log.warning("no sandbox can be made", error=str(error))
