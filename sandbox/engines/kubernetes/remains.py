"""Remains: all that an instance has on a cluster, by its label, for when no gateway of it serves any more.

What runs goes first, then files, the records of threads, and what namespaces have. The keys go last: without them a
gateway that was overlooked would make others, and lose its sandboxes.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import INSTANCE, TENANT, Site
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.recorded_mode import as_recorded
from sandbox.engines.kubernetes.resources import (
    CLAIMS,
    LEASES,
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    QUOTAS,
    SANDBOXES,
    SECRETS,
    VOLUME_SNAPSHOTS,
    Made,
    Resource,
)
from sandbox.errors import SandboxError

# Pods end in seconds; a namespace takes what is in it with it.
_GONE_S = 120.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Remaining:
    """An object of the instance; `namespace` is "" for a namespace itself."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource.plural} {f'{self.namespace}/' if self.namespace else ''}{self.name}"


@dataclass(frozen=True)
class Remains:
    """Looks at what an instance has, and removes it. The account needs REMOVAL_VERBS besides those of a gateway."""

    requests: KubernetesRequests
    site: Site

    async def found(self) -> Sequence[Remaining]:
        """Return what there is, in the order in which it is to be removed; raises SandboxError."""
        site, per_tenant = self.site, self.site.namespace_per_tenant
        preflight = Preflight(self.requests, await as_recorded(self.requests, site))
        sandboxes = (SANDBOXES,) if await self._has_sandboxes(preflight) else ()
        # Also where no class is configured any more.
        copies = (
            (VOLUME_SNAPSHOTS,) if VOLUME_SNAPSHOTS.version in await preflight.served(VOLUME_SNAPSHOTS.group) else ()
        )
        found = []
        for resource in (*sandboxes, PODS, CLAIMS, *copies):
            found += [one for one in await self._listed(resource, site.scope()) if site.has(one[1])]
        found += await self._listed(LEASES, site.namespace)
        if per_tenant:
            found += [one for one in await self._listed(NAMESPACES, "") if self._is_tenants(one[1])]
        else:
            for resource in (NETWORK_POLICIES, QUOTAS, LIMIT_RANGES, SECRETS):
                found += await self._named(resource, site.namespace, site.shared_name(resource))
        found += await self._named(SECRETS, site.keys_namespace, site.name("authority"))
        return [
            Remaining(resource, made["metadata"].get("namespace", ""), made["metadata"]["name"])
            for resource, made in found
        ]

    async def removed(self, found: Sequence[Remaining]) -> Sequence[str]:
        """Remove what was found, and wait until it is gone; return what is left, with reasons."""
        left = []
        # What is removed has the record of the mode.
        then = replace(self, site=await as_recorded(self.requests, self.site))
        for one in found:
            try:
                await self.requests.delete(one.resource, one.namespace, one.name)
            except SandboxError as error:
                left.append(f"{one}: {error}")
        deadline_s = time.monotonic() + _GONE_S
        while not left and (going := await then.found()):
            if time.monotonic() > deadline_s:
                return [f"{one}: the cluster is still removing it" for one in going]
            await asyncio.sleep(_POLL_S)
        return left

    async def _has_sandboxes(self, preflight: Preflight) -> bool:
        """Return whether Sandboxes may be among it. An attempt that failed may have removed the record of the mode."""
        if preflight.site.mode == "auto":
            return SANDBOXES.version in await preflight.served(SANDBOXES.group)
        return await preflight.uses_sandboxes()

    async def _listed(self, resource: Resource, namespace: str) -> list[tuple[Resource, Made]]:
        found, _ = await self.requests.list(resource, namespace, self.site.selector())
        return [(resource, made) for made in found]

    def _is_tenants(self, namespace: Made) -> bool:
        """Return whether a namespace is one that a gateway made, and not another one with its labels."""
        tenant = namespace["metadata"]["labels"].get(TENANT, "")
        return bool(namespace["metadata"]["name"] == self.site.namespace_of_tenant(tenant))

    async def _named(self, resource: Resource, namespace: str, name: str) -> list[tuple[Resource, Made]]:
        """Return the one object of a name, which no gateway may list, if it is the instance's."""
        made = await self.requests.get(resource, namespace, name)
        mine = made is not None and (made["metadata"].get("labels") or {}).get(INSTANCE) == self.site.instance
        return [(resource, made)] if made is not None and mine else []
