"""DockerEngine: sandboxes as containers of a Docker engine, put together from the parts that this package has.

What is inside a container is decided in container_config.py, and docker_requests.py talks to Docker.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandbox.background import BackgroundTasks
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.attached_sandboxes import AttachedSandboxes
from sandbox.engines.docker.blueprint import Blueprints
from sandbox.engines.docker.boot import Boot
from sandbox.engines.docker.carriers import Carriers
from sandbox.engines.docker.containers import Containers
from sandbox.engines.docker.creation import Creation
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.docker_requests import DockerRequests, EngineFacts
from sandbox.engines.docker.endings import Endings
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.pool_locks import PoolLocks
from sandbox.engines.docker.reconciliation import Reconciliation
from sandbox.engines.docker.sandbox_history import Lifetime, recorder
from sandbox.engines.docker.sandbox_listing import SandboxListing
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.stopped_sandboxes import StoppedSandboxes
from sandbox.engines.docker.tenant_removal import TenantRemoval
from sandbox.engines.docker.thread_gates import ThreadGates
from sandbox.engines.docker.workspace_claims import WorkspaceClaims
from sandbox.engines.docker.workspace_transfer import WorkspaceTransfer
from sandbox.engines.engine import Saved
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import EngineUnavailable
from sandbox.owner import Owner
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import UNUSED, Tell, nobody
from sandbox.usage import Usage

__all__ = ["DockerEngine", "EngineFacts"]

log = logging.getLogger(__name__)


class DockerEngine:
    """Satisfies sandbox.engines.engine.Engine; `pool` makes its pooled sandboxes.

    `channel_root` must be the same path for this process and for the engine. `instance` labels what belongs to this
    gateway and survives its restarts. Processes that share it and the engine must share `channel_root`, where their
    locks are. `requests`, which the engine closes, is the way to Docker; None means DOCKER_HOST or the default socket.

    A sandbox is not used any more `lifetime_s` after it was made. `tell` receives transitions; `clock` is in seconds
    since 1970.
    """

    def __init__(
        self,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str = "airlock-runtime",
        requests: DockerRequests | None = None,
        lifetime_s: float | None = None,
        tell: Tell = nobody,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.instance = instance
        self.channel_root = channel_root = channel_root.absolute()
        requests = DockerRequests() if requests is None else requests
        containers = Containers(requests, instance, channel_root)
        self._parts = parts = Parts(
            requests,
            containers,
            LockDirectory(channel_root, instance),
            StoppedSandboxes(channel_root, instance, clock),
            WorkspaceClaims(requests, instance, runtime_image),
            Lifetime(lifetime_s, clock),
            recorder(tell),
            BackgroundTasks(),
            new_suffix=lambda: secrets.token_hex(4),
        )
        pool_locks = PoolLocks(channel_root, instance)
        gates, boot, listing = ThreadGates(parts), Boot(parts, runtime_image), SandboxListing(parts)
        self._setup = setup = EngineSetup(requests, parts.locks, instance, runtime_image)
        self._blueprints = blueprints = Blueprints(requests, setup, instance, channel_root)
        self._attached = attached = AttachedSandboxes(parts.lifetime)
        self._stopped = stopped = StoppedContainers(parts, boot)
        carriers = Carriers(
            requests,
            containers,
            setup,
            instance=instance,
            channel_root=channel_root,
            runtime_image=runtime_image,
        )
        self.pool = DockerPool(parts, pool_locks, setup, blueprints, boot, gates, attached)
        self._listing = listing
        self._creation = Creation(parts, setup, blueprints, boot, gates, attached, stopped)
        self._endings = Endings(parts, gates, attached, stopped, listing)
        self._reconciliation = Reconciliation(parts, gates, attached, stopped, self.pool, carriers)
        self._transfer = WorkspaceTransfer(parts, carriers, setup, pool_locks, instance)
        self._removal = TenantRemoval(parts, setup, gates, stopped, self.pool, carriers)
        self._closed = False

    # --- the engine itself ---

    async def id(self) -> str:
        return await self._setup.engine_id()

    async def ping(self) -> None:
        """Return when the engine answers, behind no other request; EngineUnavailable when it does not."""
        await self._parts.requests.ping()

    async def describe(self) -> EngineFacts:
        """Return the engine's facts; EngineUnavailable when it does not answer."""
        return await self._parts.requests.ask(docker_requests.describe)

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else the daemon watches it, and may be late."""
        return self._setup.bounds_workspaces

    def label_channels(self, identity: str) -> None:
        """Label the containers that are made from now on with their channel directory's identity."""
        self._blueprints.channels_identity = identity

    async def prepare(self) -> None:
        await self._setup.prepared()

    # --- Creator, Leasing ---

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self._creation.create(spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        return await self._creation.find(spec)

    async def reconcile(self) -> Sequence[LeftSandbox]:
        return await self._reconciliation.reconcile()

    async def stop_idle(self, sandbox_id: str) -> bool:
        return await self._endings.stop_idle(sandbox_id)

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        return await self._stopped.trim(timeout_s=timeout_s, limit=limit)

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        return await self._endings.remove_idle(tenant, stop=stop)

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        await self._endings.remove(sandbox_id, reason)

    async def remove_workspaces(self) -> None:
        await self._removal.remove_workspaces()

    # --- Register, Listing ---

    def has(self, spec: SandboxSpec) -> bool:
        return self._listing.has(spec)

    def stopped(self, spec: SandboxSpec) -> str | None:
        return self._listing.stopped(spec)

    def stopped_count(self) -> int:
        return self._listing.stopped_count()

    def owners(self) -> Sequence[Owner]:
        return self._listing.owners()

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        return await self._listing.listed(tenant)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        return await self._parts.containers.usage(sandbox)

    async def owned(self) -> Mapping[str, bool]:
        return await self._parts.containers.owned()

    # --- Workspaces ---

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], Saved]) -> Saved | None:
        return await self._transfer.save_workspace(spec, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        await self._transfer.replace_workspace(spec, give, size_bytes=size_bytes)

    # --- Ending, Removal ---

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        return await self._endings.stop(tenant, thread)

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        return await self._endings.remove_of(tenant, thread)

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        return await self._endings.end_calls(tenant, thread, overdue=overdue)

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        return await self._transfer.remove_workspace(tenant, thread)

    async def remove_all_of(self, tenant: str) -> int:
        return await self._removal.remove_all_of(tenant)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        return await self._removal.left_of(tenant)

    # --- the end ---

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._endings.close()
        parts = self._parts
        try:
            await parts.background.settled()
            if parts.requests.connected:
                await self._remove_all(keep_sandboxes=keep_sandboxes)
        except EngineUnavailable as error:
            log.warning("sandboxes stay until the next start: %s", error)
        finally:
            self._attached.close()
            self.pool.close()
            self._setup.close()
            parts.locks.close()
            parts.stopped.close()
            parts.requests.close()

    async def _remove_all(self, *, keep_sandboxes: bool) -> None:
        """Remove every sandbox that no other process has, and what the last process of the instance shares."""
        await self.pool.discard_all()
        if not keep_sandboxes:
            await asyncio.gather(*map(self._endings.remove, await self._reconciliation.running()))
        if await self._setup.is_last():
            if not keep_sandboxes:
                await self._stopped.remove_all()
            await self._setup.release()
