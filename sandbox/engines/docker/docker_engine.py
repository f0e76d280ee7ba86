"""DockerEngine: sandboxes as containers of a Docker engine, put together from the parts that this package has.

What is inside a container is decided in container_config.py, and docker_requests.py talks to Docker.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.engines.docker.boot import Boot
from sandbox.engines.docker.creation import Creation
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.endings import Endings
from sandbox.engines.docker.engine_facts import EngineFacts, describe
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.reconciliation import Reconciliation
from sandbox.engines.docker.sandbox_listing import SandboxListing
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.workspace_transfer import EngineDisk, UnseenDisk, WorkspaceTransfer
from sandbox.engines.lifetime import Lifetime
from sandbox.errors import EngineUnavailable
from sandbox.transition import STOPPING, OnTransition, ignored

log = logging.getLogger(__name__)


class DockerEngine:
    """Satisfies sandbox.engines.engine.Engine; `pool` makes its pooled sandboxes.

    `channel_root` must be the same path for this process and for the engine, unless that is on another machine, as
    `requests` says. `instance` labels what belongs to this gateway and survives its restarts. Processes that share it
    and the engine must share `channel_root`, where their locks are. `requests`, which the engine closes, is the way to
    Docker; None means DOCKER_HOST or the default socket, on this machine.

    A sandbox is not used any more `lifetime_s` after it was made. `on_transition` receives transitions; `clock` is in
    seconds since 1970.
    """

    def __init__(
        self,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str = "airlock-runtime",
        requests: DockerRequests | None = None,
        lifetime_s: float | None = None,
        on_transition: OnTransition = ignored,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.instance = instance
        self.channel_root = channel_root.absolute()
        requests = DockerRequests() if requests is None else requests
        lifetime = Lifetime(lifetime_s, clock)
        self._parts = parts = Parts(instance, self.channel_root, runtime_image, requests, lifetime, on_transition)
        self.boot, listing = Boot(parts), SandboxListing(parts)
        transfer = WorkspaceTransfer(parts, EngineDisk(requests) if requests.relays is None else UnseenDisk())
        self._stopped = stopped = StoppedContainers(parts, self.boot)
        self.pool = DockerPool(parts, self.boot)
        self._endings = endings = Endings(parts, stopped, listing, self.pool, transfer)
        self._reconciliation = Reconciliation(parts, stopped, self.pool, transfer)
        creation = Creation(parts, self.boot, stopped)
        self._closed = False

        # The protocols' methods, each by the part that does it. Creator and Leasing:
        self.create, self.find = creation.create, creation.find
        self.reconcile = self._reconciliation.reconcile
        self.stop_idle, self.remove, self.remove_idle = endings.stop_idle, endings.remove, endings.remove_idle
        self.trim_stopped = stopped.trim
        self.remove_workspaces = endings.remove_workspaces
        # Register and Listing:
        self.has, self.stopped, self.stopped_count = listing.has, listing.stopped, listing.stopped_count
        self.owners, self.listed = parts.locks.owners, listing.listed
        self.usage, self.owned = parts.containers.usage, parts.containers.owned
        # Ending, Workspaces and Removal:
        self.stop, self.remove_of, self.end_calls = endings.stop, endings.remove_of, endings.end_calls
        self.save_workspace, self.replace_workspace = transfer.save_workspace, transfer.replace_workspace
        self.remove_workspace = transfer.remove_workspace
        self.remove_all_of, self.left_of = endings.remove_all_of, endings.left_of
        # The engine itself:
        self.id, self.ping = parts.setup.engine_id, requests.ping

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else the daemon watches it, and may be late."""
        context = self._parts.setup.context
        return context is not None and context.workspace_quota

    async def describe(self) -> EngineFacts:
        return await self._parts.requests.ask(describe)

    async def prepare(self) -> None:
        await self._parts.setup.prepared()

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        parts = self._parts
        try:
            await parts.background.settled()
            await parts.setup.settled()
            if parts.requests.connected:
                await self._remove_all(keep_sandboxes=keep_sandboxes)
        except EngineUnavailable as error:
            log.warning("sandboxes stay until the next start: %s", error)
        finally:
            parts.attached.close()
            self.pool.close()
            parts.setup.close()
            parts.locks.close()
            parts.stopped.close()
            parts.requests.close()

    async def _remove_all(self, *, keep_sandboxes: bool) -> None:
        """Remove every sandbox that no other process has, and what the last process of the instance shares."""
        await self.pool.discard_all()
        if not keep_sandboxes:
            running = await self._reconciliation.running()
            await asyncio.gather(*(self._endings.remove_for(sandbox_id, STOPPING) for sandbox_id in running))
        if await self._parts.setup.is_last():
            if not keep_sandboxes:
                await self._stopped.remove_all()
            await self._parts.setup.release()
