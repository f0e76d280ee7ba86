"""Pods and volume claims that have no owner yet: taken for a thread, or removed, by compare-and-swap.

Each write names the version that it replaces, so of several processes one succeeds, whatever their copies of the
objects say. The version may come from such a copy: one that is old costs a further request, and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import CLAIMS, PODS, Conflict, KubernetesRequests, Made, Resource
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import owner_in
from sandbox.engines.kubernetes.workloads import Workloads
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner

# The cluster changes a Pod a few times while it comes up or ends.
_ATTEMPTS = 8


@dataclass(frozen=True)
class Unowned:
    """`workloads` is what is chosen when the engine is prepared: where that is a Sandbox, it is taken, not its Pod."""

    requests: KubernetesRequests
    site: Site
    pods: Mirror[Pod]
    workloads: Callable[[], Workloads]

    async def take_pod(self, name: str, owner: Owner) -> bool:
        """Give a Pod to a thread; False where it is gone, or another thread's."""
        workloads = self.workloads()
        version = self.pods.version(name) if workloads.resource is PODS else ""
        change = workloads.relabelled(self.site.labels("sandbox", owner))
        return await self._taken(workloads.resource, name, version, owner, change)

    async def take_claim(self, name: str, version: str, owner: Owner) -> bool:
        """Give the claim of a thread's Pod to the thread, too. Who has the Pod has no rival for it."""
        change = {"metadata": {"labels": self.site.labels("workspace", owner)}}
        return await self._taken(CLAIMS, name, version, owner, change)

    async def remove(self, pod: str, claim: str, owner: Owner | None = None) -> None:
        """Remove a Pod and its claim, unless they are a thread's, another one than `owner`."""
        workloads = self.workloads()
        version = self.pods.version(pod) if workloads.resource is PODS and self._seems_unowned(pod) else ""
        if pod and await self._removed(workloads.resource, pod, version, owner):
            await workloads.ended_with(None, pod)
        if claim:
            await self._removed(CLAIMS, claim, "", owner)

    async def _taken(self, resource: Resource, name: str, version: str, owner: Owner, change: Made) -> bool:
        for _ in range(_ATTEMPTS):
            if version:
                try:
                    versioned = {**change, "metadata": {**change["metadata"], "resourceVersion": version}}
                    made = await self.requests.patch(resource, self.site.namespace, name, versioned)
                    if made is not None and resource is PODS:
                        self.pods.put(made)
                    return made is not None and "deletionTimestamp" not in made["metadata"]
                except Conflict:
                    pass
            found = await self.requests.get(resource, self.site.namespace, name)
            if found is None or "deletionTimestamp" in found["metadata"]:
                return False
            if not _is_unowned(found):
                # Behind the thread's gate only an earlier attempt of this, whose answer was lost, has done that.
                return owner_in(found) == owner
            version = found["metadata"]["resourceVersion"]
        raise SandboxUnavailable(f"{resource.plural} {name} change too often to be claimed")

    async def _removed(self, resource: Resource, name: str, version: str, owner: Owner | None) -> bool:
        """Return whether this has removed it."""
        for _ in range(_ATTEMPTS):
            if not version:
                found = await self.requests.get(resource, self.site.namespace, name)
                if found is None or not (_is_unowned(found) or owner_in(found) == owner is not None):
                    return False
                version = found["metadata"]["resourceVersion"]
            try:
                return await self.requests.delete(resource, self.site.namespace, name, version=version)
            except Conflict:
                version = ""
        raise SandboxUnavailable(f"{resource.plural} {name} change too often to be removed")

    def _seems_unowned(self, pod: str) -> bool:
        """Return whether the copy has it without owner; deleted in that version, it can have none."""
        known = self.pods.items.get(pod)
        return known is not None and known.kind == manifests.POOLED


def _is_unowned(made: Made) -> bool:
    return (made["metadata"].get("labels") or {}).get(manifests.KIND) == manifests.POOLED
