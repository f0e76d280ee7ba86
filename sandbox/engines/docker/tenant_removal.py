"""TenantRemoval: everything of a tenant, or the files of the whole instance, removed for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.carriers import Carriers
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.thread_gates import ThreadGates
from sandbox.errors import SandboxUnavailable
from sandbox.owner import digest
from sandbox.transition import DELETED


@dataclass(frozen=True)
class TenantRemoval:
    """Removes by labels, whichever process made it."""

    parts: Parts
    setup: EngineSetup
    gates: ThreadGates
    stopped: StoppedContainers
    pool: DockerPool
    carriers: Carriers

    async def remove_all_of(self, tenant: str) -> int:
        """Remove all of a tenant, with replaced files that could not be removed at once.

        Such files are in a volume that no longer says whose it is, so SandboxUnavailable is raised at the end if any
        volume without an owner stays.
        """
        await self.carriers.remove_left()  # a carrier that a dead process left would keep its volume in use
        left = await self.pool.reconcile()
        removed = await self._remove_labelled(tenant)
        if left:
            raise SandboxUnavailable(
                f"volumes of {', '.join(sorted(left))} could not be removed and may have files of this tenant; "
                "the gateway's log has the reasons"
            )
        return removed

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `volumes` and `containers` of a tenant there are."""
        # The volume of a claimed pooled sandbox is not counted beside its claim, which outlives it.
        volumes = await self.parts.claims.workspaces({config.TENANT_LABEL: digest(tenant)})
        return {"volumes": len(volumes), "containers": len(await self._containers_of(tenant))}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this instance for good, unless another process of it serves."""
        await self.parts.background.settled()  # a sandbox that never came up may still use its workspace
        if not await self.setup.stop_serving():
            return
        await self.stopped.remove_all()
        left = []
        for name, labels in (await self.parts.claims.workspaces({config.KIND_LABEL: "workspace"})).items():
            thread = labels.get(config.THREAD_LABEL, labels.get(config.POOL_LABEL, ""))
            try:
                await self.parts.claims.remove_volume(name, (labels.get(config.TENANT_LABEL, ""), thread))
            except SandboxUnavailable as error:
                left.append(str(error))
        if left:
            raise SandboxUnavailable("; ".join(left))

    async def _remove_labelled(self, tenant: str) -> int:
        mine, parts = digest(tenant), self.parts
        for owner in parts.locks.owners():
            if owner[0] != mine:
                continue
            async with self.gates.existing(owner) as gate:
                if gate is not None:
                    await parts.containers.remove(gate.note.sandbox)
                    gate.lock.retire()
        for owner in parts.stopped.owners():
            if owner[0] == mine:
                await self.stopped.remove(owner, DELETED)
        await parts.containers.remove_each(await self._containers_of(tenant))
        volumes = await parts.claims.workspaces({config.TENANT_LABEL: mine})
        return sum([await parts.claims.remove_files((mine, one[config.THREAD_LABEL])) for one in volumes.values()])

    async def _containers_of(self, tenant: str) -> list[dict[str, Any]]:
        """Return every container of a tenant, claimed pooled ones too, which do not have its label."""
        claimed = await self.parts.claims.of_tenant(digest(tenant))
        return [*await self.parts.containers.of_tenant(tenant), *await self.parts.containers.named([*claimed])]
