"""The sandboxes: the engine that makes them, and the keeper that lends one to each thread."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gateway.composition.foundation import Foundation
from gateway.serving.health import Ask
from gateway.telemetry.observed_sandboxes import observed_engine, observed_keeper
from sandbox.docker_engine import DockerEngine
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.sandbox_keeper import SandboxKeeper

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sandboxes:
    """The engine, which of all it is, and its sandboxes. None is an engine that does not answer: it may be any."""

    engine: Engine
    engine_id: str | None
    keeper: SandboxKeeper
    ping: Ask


async def open_sandboxes(stack: AsyncExitStack, on: Foundation) -> Sandboxes:
    """Take over the sandboxes that are left from before, and say what would fail the first call."""
    config, settings = on.config, on.config.sandbox
    docker = DockerEngine(
        instance=on.instance,
        channel_root=config.resolved_channel_dir(),
        runtime_image=settings.runtime_image,
        base_url=settings.engine_url,
        named_in="sandbox.engine_url of the configuration",
    )
    engine: Engine = docker
    keeps = settings.on_stop == "keep"
    stack.push_async_callback(engine.close, keep_sandboxes=keeps)
    left = await engine.reconcile()
    keeper = SandboxKeeper(
        observed_engine(engine, on.telemetry),
        idle_timeout_s=settings.idle_timeout_s,
        max_live=settings.max_live,
        max_live_per_tenant=settings.max_live_per_tenant,
    )
    stack.push_async_callback(keeper.close, keep_sandboxes=keeps, remove_workspaces=not settings.keep_workspaces)
    await keeper.adopt(left)
    await _say_what_sandboxes_lack(engine)
    return Sandboxes(engine, await _engine_id(engine), observed_keeper(keeper, on.telemetry), docker.ping)


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
