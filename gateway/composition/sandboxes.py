"""The sandboxes: the engine that makes them, and the keeper that lends one to each thread."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gateway.composition.foundation import Foundation
from gateway.config import SandboxSettings
from gateway.sandbox_history import SandboxHistory
from gateway.serving.health import Ask
from gateway.storage.transition_store import TransitionStore
from gateway.telemetry.observed_sandboxes import observed_engine, observed_keeper
from sandbox.docker_engine import DockerEngine
from sandbox.docker_requests import DockerRequests
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.image_gate import image_gate
from sandbox.image_pulls import ImagePulls, pulling_engine
from sandbox.memory_engine import MemoryEngine
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
    history = SandboxHistory(TransitionStore(on.database), on.config.tenants)
    engine, ping = _chosen(on, history)
    await stack.enter_async_context(history.writing(engine.id))
    keeps = settings.on_stop == "keep"
    stack.push_async_callback(engine.close, keep_sandboxes=keeps)
    left = await engine.reconcile()
    keeper = SandboxKeeper(
        observed_engine(_pulling(stack, engine, settings), on.telemetry),
        idle_timeout_s=settings.idle_timeout_s,
        max_live=settings.max_live,
        max_live_per_tenant=settings.max_live_per_tenant,
        stopped_timeout_s=settings.stopped_timeout_s,
        max_stopped=settings.max_stopped,
    )
    stack.push_async_callback(keeper.close, keep_sandboxes=keeps, remove_workspaces=not settings.keep_workspaces)
    await keeper.adopt(left)
    await _say_what_sandboxes_lack(engine)
    return Sandboxes(engine, await _engine_id(engine), observed_keeper(image_gate(keeper), on.telemetry), ping)


def _chosen(on: Foundation, history: SandboxHistory) -> tuple[Engine, Ask]:
    """Return the engine that the configuration asks for, and what to ask for whether it answers."""
    config, settings = on.config, on.config.sandbox
    if settings.engine == "memory":
        log.warning("sandbox.engine is memory: every command runs on this machine, unconfined, as the gateway's user")
        memory = MemoryEngine(root=config.path(config.state_dir) / "memory", lifetime_s=settings.lifetime_s)
        return memory, memory.ping
    docker = DockerEngine(
        instance=on.instance,
        channel_root=config.resolved_channel_dir(),
        runtime_image=settings.runtime_image,
        base_url=settings.engine_url,
        named_in=_ENGINE_NAMED_IN,
        lifetime_s=settings.lifetime_s,
        tell=history.tell,
    )
    return docker, docker.ping


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
