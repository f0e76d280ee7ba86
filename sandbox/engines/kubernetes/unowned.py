"""Pods and volume claims that have no owner yet: taken for a thread, or removed, by compare-and-swap.

Each write names the version that it replaces, so of several processes one succeeds, whatever their copies of the
objects say. The version may come from such a copy: one that is old costs a further request, and nothing else.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import CLAIMS, PODS, Conflict, KubernetesRequests, Made, Resource
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import owner_in
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner

# The cluster changes a Pod a few times while it comes up or ends.
_ATTEMPTS = 8


@dataclass(frozen=True)
class Unowned:
    """`ended` waits for the end of a Pod that is being deleted."""

    requests: KubernetesRequests
    site: Site
    pods: Mirror[Pod]
    ended: Callable[[str], Awaitable[None]]

    async def take_pod(self, name: str, owner: Owner) -> bool:
        """Give a Pod to a thread; False where it is gone, or another thread's."""
        return await self._taken(PODS, name, self.pods.version(name), self.site.labels("sandbox", owner))

    async def take_claim(self, name: str, version: str, owner: Owner) -> bool:
        """Give the claim of a thread's Pod to the thread, too. Who has the Pod has no rival for it."""
        return await self._taken(CLAIMS, name, version, self.site.labels("workspace", owner))

    async def remove(self, pod: str, claim: str, owner: Owner | None = None) -> None:
        """Remove a Pod and its claim, unless they are a thread's, another one than `owner`."""
        version = self.pods.version(pod) if self._seems_unowned(pod) else ""
        if pod and await self._removed(PODS, pod, version, owner):
            await self.ended(pod)
        if claim:
            await self._removed(CLAIMS, claim, "", owner)

    async def _taken(self, resource: Resource, name: str, version: str, labels: dict[str, str]) -> bool:
        owner = labels[manifests.TENANT], labels[manifests.THREAD]
        for _ in range(_ATTEMPTS):
            if version:
                try:
                    made = await self.requests.swap(resource, self.site.namespace, name, version, {"labels": labels})
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
