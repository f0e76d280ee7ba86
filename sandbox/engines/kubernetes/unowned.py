"""Pods and volume claims that have no owner yet: taken for a thread, or removed, by compare-and-swap.

Each write names the version that it replaces, so of several processes one succeeds, whatever their copies of the
objects say. The version may come from such a copy: one that is old costs a further request, and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import owner_in
from sandbox.engines.kubernetes.resources import CLAIMS, PODS, Made, Resource
from sandbox.engines.kubernetes.workloads import Workloads
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner

# The cluster changes a Pod a few times while it comes up or ends.
_ATTEMPTS = 8

_End = Literal["removed", "gone", "another's"]


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
        version = self._unowned_version(workloads, name)
        change = workloads.relabelled(self.site.labels("sandbox", owner))
        return await self._taken(workloads.resource, name, version, owner, change)

    async def take_claim(self, name: str, version: str, owner: Owner) -> bool:
        """Give the claim of a thread's Pod to the thread, too. Who has the Pod has no rival for it."""
        change = {"metadata": {"labels": self.site.labels("workspace", owner)}}
        return await self._taken(CLAIMS, name, version, owner, change)

    async def remove(self, pod: str, claim: str, owner: Owner | None = None) -> None:
        """Remove a Pod and its claim, unless they are a thread's, another one than `owner`."""
        workloads = self.workloads()
        version = self._unowned_version(workloads, pod)
        end = await self._removed(workloads.resource, pod, version, owner) if pod else "gone"
        if end == "removed":
            await workloads.ended_with(pod)
        # Who has the Pod has its claim, too, and labels it a moment later.
        if claim and end != "another's":
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

    async def _removed(self, resource: Resource, name: str, version: str, owner: Owner | None) -> _End:
        for _ in range(_ATTEMPTS):
            if not version:
                found = await self.requests.get(resource, self.site.namespace, name)
                if found is None:
                    return "gone"
                if not (_is_unowned(found) or owner_in(found) == owner is not None):
                    return "another's"
                version = found["metadata"]["resourceVersion"]
            try:
                removed = await self.requests.delete(resource, self.site.namespace, name, version=version)
                return "removed" if removed else "gone"
            except Conflict:
                version = ""
        raise SandboxUnavailable(f"{resource.plural} {name} change too often to be removed")

    def _unowned_version(self, workloads: Workloads, pod: str) -> str:
        """Return the version in which the copy has a Pod without owner, "" where it has none.

        Never the newest that was seen: replaced in a version that has an owner, the Pod would be taken from its thread.
        """
        known = self.pods.items.get(pod)
        is_unowned = known is not None and known.kind == manifests.POOLED
        return self.pods.version(pod) if workloads.resource is PODS and is_unowned else ""


def _is_unowned(made: Made) -> bool:
    return (made["metadata"].get("labels") or {}).get(manifests.KIND) == manifests.POOLED
