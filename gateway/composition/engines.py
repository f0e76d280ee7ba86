"""Builds the engine that the configuration names, with what only some engines have.

Each is loaded for the gateways that use it: the clients of Docker and of Kubernetes are large.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from gateway.composition.foundation import Foundation
from gateway.errors import Misconfigured
from gateway.serving.directory_locks import locked_for
from gateway.storage.database import identity_of
from gateway.storage.engine_store import ChannelStore
from sandbox.engines.engine import Engine, VolumeCopies
from sandbox.engines.pooled_sandbox import PoolSource
from sandbox.transition import OnTransition

if TYPE_CHECKING:
    from sandbox.engines.docker.docker_engine import DockerEngine
    from sandbox.engines.docker.docker_requests import DockerRequests
    from sandbox.engines.docker.image_pulls import ImagePulls

log = structlog.get_logger(__name__)


class ServedEngine(Engine, Protocol):
    """An engine that says whether it answers."""

    async def ping(self) -> None:
        """Raise SandboxError if the engine does not answer."""


@dataclass(frozen=True)
class OpenedEngine:
    """An engine. None where it has no pool, pulls images itself, has no disk that is seen from here, or no copies."""

    engine: ServedEngine
    pool: PoolSource | None = None
    pulls: ImagePulls | None = None
    free_bytes: Callable[[], Awaitable[int]] | None = None
    copies: VolumeCopies | None = None


async def open_engine(stack: AsyncExitStack, base: Foundation, on_transition: OnTransition) -> OpenedEngine:
    """Make the engine; raises if it must not be used with this database. The caller closes it."""
    match base.config.sandbox.engine:
        case "memory":
            return _memory(base, on_transition)
        case "kubernetes":
            return _kubernetes(base, on_transition)
        case _:
            return await _docker(stack, base, on_transition)


def _memory(base: Foundation, on_transition: OnTransition) -> OpenedEngine:
    from sandbox.engines.local.memory_engine import MemoryEngine  # noqa: PLC0415 - see the top of the module

    config, settings = base.config, base.config.sandbox
    log.warning("sandbox.engine is memory: every command runs on this machine, unconfined, as the gateway's user")
    root = config.path(config.state_dir).resolve() / "memory"
    return OpenedEngine(MemoryEngine(root=root, lifetime_s=settings.lifetime_s, on_transition=on_transition))


def _kubernetes(base: Foundation, on_transition: OnTransition) -> OpenedEngine:
    try:
        from gateway.composition.cluster_limits import cluster_limits  # noqa: PLC0415 - as above
        from gateway.composition.kubernetes import requests_of, site_of  # noqa: PLC0415 - as above
        from sandbox.engines.kubernetes.boot import Inspection  # noqa: PLC0415 - as above
        from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"sandbox.engine: kubernetes needs the package {error.name}: install `airlock-agent-gateway[kubernetes]`"
        ) from error
    settings = base.config.sandbox
    engine = KubernetesEngine(
        site_of(base.config, base.instance),
        requests_of(base.config),
        inspection=Inspection(settings.kubernetes.allow_unlimited_pids),
        lifetime_s=settings.lifetime_s,
        on_transition=on_transition,
        allowances=cluster_limits(base.config, base.tenants),
    )
    # A Pod stays in the namespace in which it was made.
    pooled = settings.pool_limit and not settings.kubernetes.namespace_per_tenant
    return OpenedEngine(engine, engine.pool if pooled else None, copies=engine.copies)


async def _docker(stack: AsyncExitStack, base: Foundation, on_transition: OnTransition) -> OpenedEngine:
    from gateway.sandboxes.docker_access import docker_requests  # noqa: PLC0415 - as above
    from sandbox.engines.docker.docker_engine import DockerEngine  # noqa: PLC0415 - as above
    from sandbox.engines.docker.image_pulls import ImagePulls  # noqa: PLC0415 - as above
    from sandbox.engines.docker.workspace_transfer import EngineDisk  # noqa: PLC0415 - as above

    config, settings = base.config, base.config.sandbox
    requests = partial(docker_requests, config)
    engine = DockerEngine(
        instance=base.instance,
        channel_root=config.resolved_channel_dir(),
        runtime_image=settings.runtime_image,
        requests=requests(),
        lifetime_s=settings.lifetime_s,
        on_transition=on_transition,
    )
    with contextlib.closing(requests()) as asked:
        await _claim_channels(stack, base, engine, asked)
    pulls = None
    if settings.pull != "never":
        pulls = ImagePulls(requests(), wait_s=settings.pull_wait_s, timeout_s=settings.pull_timeout_s)
        stack.callback(pulls.close)
    watching = requests()
    stack.callback(watching.close)
    pool = engine.pool if settings.pool_limit else None
    # The disk of another machine is not seen from here.
    free_bytes = EngineDisk(watching).free_bytes if watching.relays is None else None
    return OpenedEngine(engine, pool, pulls, free_bytes)


async def _claim_channels(
    stack: AsyncExitStack, base: Foundation, engine: DockerEngine, requests: DockerRequests
) -> None:
    """Refuse a directory of another engine or database, before anything in it counts as an orphan."""
    from gateway.sandboxes.channel_claim import channel_use, claim_channels  # noqa: PLC0415 - as above

    channels = base.config.resolved_channel_dir()
    use = await channel_use(requests, await engine.id(), base.instance, channels)
    engine.boot.channels_identity = await claim_channels(use, ChannelStore(base.database))
    stack.enter_context(locked_for(channels, base.instance, await identity_of(base.database)))
