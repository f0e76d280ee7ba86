"""The sandboxes: the engine that makes them, and the keeper that lends one to each thread."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import cast

import structlog

from gateway.composition.foundation import Foundation
from gateway.composition.sandbox_pool import begin_pool
from gateway.config import SandboxSettings
from gateway.policy.document import QuotasSection
from gateway.quotas import Quotas
from gateway.sandboxes.counted_creation import counted_creation
from gateway.sandboxes.history_writer import HistoryWriter
from gateway.serving.health import Ask
from gateway.storage.quota_store import QuotaStore
from gateway.storage.transition_store import TransitionStore
from gateway.telemetry.observed_sandboxes import observed_engine, observed_keeper
from gateway.telemetry.sandbox_totals import totalled
from sandbox.docker.docker_engine import DockerEngine
from sandbox.docker.docker_requests import DockerRequests
from sandbox.docker.image_pulls import ImagePulls, pullable, pulling_engine
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.fair_creation import fair_creation
from sandbox.image_gate import image_gate
from sandbox.memory.memory_engine import MemoryEngine
from sandbox.pooled_engine import PooledEngine
from sandbox.sandbox_keeper import SandboxKeeper

log = structlog.get_logger(__name__)

_ENGINE_NAMED_IN = "sandbox.engine_url of the configuration"


@dataclass(frozen=True)
class Sandboxes:
    """The engine, which of all it is, and its sandboxes. None is an engine that does not answer: it may be any."""

    engine: Engine
    engine_id: str | None
    keeper: SandboxKeeper
    ping: Ask


async def open_sandboxes(stack: AsyncExitStack, on: Foundation) -> Sandboxes:
    """Take over the sandboxes that are left from before, and say what would fail the first call."""
    settings = on.config.sandbox
    history = HistoryWriter(TransitionStore(on.database), on.config.tenants)
    engine, ping, pool = _chosen(on, history)
    await stack.enter_async_context(history.writing(engine.id))
    keeps = settings.on_stop == "keep"
    stack.push_async_callback(engine.close, keep_sandboxes=keeps)
    left = await engine.reconcile()
    await stack.enter_async_context(history.completing(engine))
    keeper = SandboxKeeper(
        _counted(observed_engine(_pulling(stack, engine, settings), on.telemetry), on),
        idle_timeout_s=settings.idle_timeout_s,
        max_live=settings.max_live,
        max_live_per_tenant=settings.max_live_per_tenant,
        stopped_timeout_s=settings.stopped_timeout_s,
        max_stopped=settings.max_stopped,
    )
    stack.push_async_callback(keeper.close, keep_sandboxes=keeps, remove_workspaces=not settings.keep_workspaces)
    await keeper.adopt(left)
    await stack.enter_async_context(totalled(on.telemetry, keeper))
    await _say_what_sandboxes_lack(engine)
    if pool is not None:
        await begin_pool(pool, on)
    return Sandboxes(engine, await _engine_id(engine), observed_keeper(image_gate(keeper), on.telemetry), ping)


def _chosen(on: Foundation, history: HistoryWriter) -> tuple[Engine, Ask, PooledEngine | None]:
    """Return the engine that the configuration asks for, what to ask for whether it answers, and its pool."""
    config, settings = on.config, on.config.sandbox
    if settings.engine == "memory":
        log.warning("sandbox.engine is memory: every command runs on this machine, unconfined, as the gateway's user")
        root = config.path(config.state_dir) / "memory"
        memory = MemoryEngine(root=root, lifetime_s=settings.lifetime_s, tell=history.tell)
        return memory, memory.ping, None
    docker = DockerEngine(
        instance=on.instance,
        channel_root=config.resolved_channel_dir(),
        runtime_image=settings.runtime_image,
        base_url=settings.engine_url,
        named_in=_ENGINE_NAMED_IN,
        lifetime_s=settings.lifetime_s,
        tell=history.tell,
    )
    fair = fair_creation(cast(Engine, docker))
    if not settings.pool_limit:
        return fair, docker.ping, None
    pulls = (lambda _: False) if settings.pull == "never" else pullable
    pool = PooledEngine(fair, docker, limit=settings.pool_limit, pulls=pulls)
    return cast(Engine, pool), docker.ping, pool


def _counted(engine: Engine, on: Foundation) -> Engine:
    """Return an engine that makes no more sandboxes a minute than a tenant's policy lets it have."""

    async def quotas_of(tenant: str) -> QuotasSection:
        return (await on.tenants.named(tenant)).policy.document.quotas

    return counted_creation(engine, Quotas(QuotaStore(on.database, on.process_id)), quotas_of)


def _pulling(stack: AsyncExitStack, engine: Engine, settings: SandboxSettings) -> Engine:
    """Return an engine that has missing images pulled, where the configuration lets it."""
    if settings.pull == "never" or settings.engine == "memory":
        return engine
    requests = DockerRequests(settings.engine_url, _ENGINE_NAMED_IN)
    pulls = ImagePulls(requests, wait_s=settings.pull_wait_s, timeout_s=settings.pull_timeout_s)
    stack.callback(pulls.close)
    return pulling_engine(engine, pulls)


async def _engine_id(engine: Engine) -> str | None:
    """Return which engine it is; None where it does not answer, and any run may be one of its."""
    try:
        return await engine.id()
    except SandboxError:
        return None


async def _say_what_sandboxes_lack(engine: Engine) -> None:
    """Log at the start what would fail the first call. It can be mended while the gateway runs."""
    try:
        await engine.prepare()
    except SandboxError as error:
        log.warning("no sandbox can be made", error=str(error))
