"""KubernetesEngine: sandboxes as Pods of a cluster, put together from the parts that this package has.

What a Pod is made of is decided in manifests.py, and kubernetes_requests.py talks to the API. Later kinds of sandboxes
(Sandboxes of agents.x-k8s.io) are further collaborators beside `boot`, behind the same records and gates.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from sandbox.engines.engine import VolumeCopies
from sandbox.engines.kubernetes.allowance import Allowances, unlimited
from sandbox.engines.kubernetes.boot import Boot, Inspection
from sandbox.engines.kubernetes.copied_volumes import snapshot_classes
from sandbox.engines.kubernetes.creation import Creation
from sandbox.engines.kubernetes.endings import Endings
from sandbox.engines.kubernetes.kubernetes_pool import KubernetesPool
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.listing import Listing
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.reachability import Objections
from sandbox.engines.kubernetes.reconciliation import Reconciliation
from sandbox.engines.kubernetes.volume_snapshots import VolumeSnapshots
from sandbox.engines.kubernetes.workspaces import Workspaces
from sandbox.engines.lifetime import Lifetime
from sandbox.errors import EngineUnavailable, SandboxError
from sandbox.transition import STOPPING, OnTransition, ignored

log = logging.getLogger(__name__)


class KubernetesEngine:
    """Satisfies sandbox.engines.engine.Engine; `pool` makes its pooled sandboxes.

    `site` says where the sandboxes are, and what the operator wants of each. Processes that share its instance share
    all they have; the engine closes `requests`. `inspection` judges a sandbox before it is used. A sandbox is not used
    any more `lifetime_s` after it was made. `on_transition` receives transitions; `clock` is in seconds since 1970.
    `allowances` says what the cluster is to limit.
    """

    def __init__(
        self,
        site: Site,
        requests: KubernetesRequests,
        *,
        inspection: Inspection | None = None,
        lifetime_s: float | None = None,
        on_transition: OnTransition = ignored,
        allowances: Allowances = unlimited,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parts = parts = Parts(requests, site, Lifetime(lifetime_s, clock), on_transition, allowances)
        Objections(parts)
        boot, listing = Boot(parts, inspection or Inspection()), Listing(parts)
        creation, workspaces = Creation(parts, boot), Workspaces(parts, boot)
        self.pool = KubernetesPool(parts, boot)
        self.copies: VolumeCopies | None = VolumeSnapshots(parts, workspaces) if snapshot_classes(site) else None
        self._endings = endings = Endings(parts, listing)
        self._closed = False

        # The protocols' methods, each by the part that does it. Creator and Leasing:
        self.create, self.find = creation.create, creation.find
        self.reconcile = Reconciliation(parts, boot, self.pool).reconcile
        self.stop_idle, self.remove, self.remove_idle = endings.stop_idle, endings.remove, endings.remove_idle
        self.trim_stopped, self.remove_workspaces = endings.trim_stopped, endings.remove_workspaces
        # Register and Listing:
        self.has, self.stopped, self.stopped_count = listing.has, listing.stopped, listing.stopped_count
        self.owners, self.listed = listing.owners, listing.listed
        self.usage, self.owned = listing.usage, listing.owned
        # Ending, Workspaces and Removal:
        self.stop, self.remove_of, self.end_calls = endings.stop, endings.remove_of, endings.end_calls
        self.save_workspace, self.replace_workspace = workspaces.save_workspace, workspaces.replace_workspace
        self.remove_workspace = endings.remove_workspace
        self.remove_all_of, self.left_of = endings.remove_all_of, endings.left_of
        # The engine itself:
        self.prepare, self.id, self.ping = parts.prepared, parts.setup.engine_id, parts.setup.ping

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every running sandbox that no other process has; stopped ones stay, for they have no Pod."""
        if self._closed:
            return
        self._closed = True
        parts = self._parts
        try:
            await self._settled()
            await self.pool.discard_all()
            if not keep_sandboxes:
                running = [id_ for id_, runs in (await self.owned()).items() if runs] if parts.leases.items else []
                await asyncio.gather(*(self._endings.remove_for(sandbox_id, STOPPING) for sandbox_id in running))
        except SandboxError as error:
            known = isinstance(error, EngineUnavailable)
            log.warning("sandboxes stay until the next start: %s", error, exc_info=not known)
        finally:
            parts.lease_watchers.clear()  # nothing begins any more that would outlive the requests
            await self._settled()
            parts.attached.close()
            await parts.pods.close()
            await parts.leases.close()
            await parts.requests.close()

    async def _settled(self) -> None:
        for task in self._parts.later:
            task.cancel()
        await asyncio.gather(*self._parts.later, return_exceptions=True)
        await self._parts.background.settled()
        await self._parts.gates.background.settled()
