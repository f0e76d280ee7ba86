"""Workloads: what runs a sandbox on the cluster, by the sandbox's id.

Either a Pod, or a Sandbox of agents.x-k8s.io, whose controller makes a Pod of the same name. The rest of the engine
knows of the Pod alone: its address, and why it ended. What distinguishes the two is here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sandbox.client.replies import plain_text
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import (
    PODS,
    SANDBOXES,
    KubernetesRequests,
    Made,
    Resource,
)
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.namespaces import Namespaces
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.records import owner_in
from sandbox.engines.kubernetes.refusals import forbidden
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner

log = logging.getLogger(__name__)

_SHOWN = 300


class Workloads(Protocol):
    """Its methods may be repeated, and raise SandboxError."""

    resource: ClassVar[Resource]

    def relabelled(self, labels: Mapping[str, str]) -> Made:
        """Return the change that gives what runs, and its Pod, other labels."""

    async def ended_with(self, owner: Owner | None, name: str) -> None:
        """Have a Pod end whose object of `resource` is deleted."""

    def body(self, pod: Made) -> Made:
        """Return the object that is made for a Pod."""

    async def start(self, pod: Made) -> None:
        """Have a Pod made, or the stopped one of its name started again."""

    async def refuse_stillborn(self, pod: Made, *, lasting: bool) -> None:
        """Raise SandboxUnavailable, of the fitting class, where no Pod is made; if `lasting` also for what may pass."""

    def absent(self, pod: Made) -> str:
        """Return what to do about a Pod that was not made in time; "" where the gateway makes it itself."""

    async def stop(self, owner: Owner | None, name: str) -> None:
        """End a Pod so that it can be started again, and wait for its end."""

    async def remove(self, owner: Owner | None, name: str) -> None:
        """Remove all there is, and wait for the Pod's end."""

    async def found(self, **labels: str) -> Mapping[str, Owner | None]:
        """Return whose each is of what there is with some labels, stopped or not, and is not being deleted."""


class PodEnds(Protocol):
    """The ends of the Pods that are known, by their names."""

    async def pod_removed(self, owner: Owner | None, name: str) -> None:
        """Remove a Pod, but none made later under its name, and wait for its end."""

    async def pod_ended(self, name: str) -> None:
        """Wait for the end of a Pod that is being removed."""


@dataclass(frozen=True)
class PodWorkloads:
    """One that is stopped is gone."""

    requests: KubernetesRequests
    site: Site
    namespaces: Namespaces
    ends: PodEnds

    resource: ClassVar[Resource] = PODS

    def relabelled(self, labels: Mapping[str, str]) -> Made:
        return {"metadata": {"labels": dict(labels)}}

    async def ended_with(self, owner: Owner | None, name: str) -> None:
        del owner
        await self.ends.pod_ended(name)

    def body(self, pod: Made) -> Made:
        return pod

    async def start(self, pod: Made) -> None:
        await self.namespaces.create(PODS, pod)

    async def refuse_stillborn(self, pod: Made, *, lasting: bool) -> None: ...

    def absent(self, pod: Made) -> str:
        del pod
        return ""

    async def stop(self, owner: Owner | None, name: str) -> None:
        await self.remove(owner, name)

    async def remove(self, owner: Owner | None, name: str) -> None:
        await self.ends.pod_removed(owner, name)

    async def found(self, **labels: str) -> Mapping[str, Owner | None]:
        return await self._labelled(PODS, labels)

    async def _labelled(self, resource: Resource, labels: Mapping[str, str]) -> Mapping[str, Owner | None]:
        where = self.site.scope(labels.get("tenant", ""))
        found, _ = await self.requests.list(resource, where, self.site.selector(**labels))
        there = [made for made in found if self.site.has(made) and not made["metadata"].get("deletionTimestamp")]
        return {str(made["metadata"]["name"]): owner_in(made) for made in there}


@dataclass(frozen=True)
class SandboxWorkloads(PodWorkloads):
    """A Sandbox of v1beta1. One that is stopped is suspended, and has no Pod.

    Of its conditions only Ready is looked at, and only while there is no Pod: after a resumption Suspended is an old
    one for a while, and whether a sandbox is ready its daemon says.
    """

    resource: ClassVar[Resource] = SANDBOXES

    def relabelled(self, labels: Mapping[str, str]) -> Made:
        metadata = {"labels": dict(labels)}
        # The controller hands on those of the template, and takes back what the Pod alone was given.
        return {"metadata": metadata, "spec": {"podTemplate": {"metadata": metadata}}}

    async def ended_with(self, owner: Owner | None, name: str) -> None:
        await self.ends.pod_removed(owner, name)  # the garbage collector would take longer

    def body(self, pod: Made) -> Made:
        return manifests.sandbox(pod)

    async def start(self, pod: Made) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if await self.namespaces.create(SANDBOXES, self.body(pod)):
            return
        if await self._set(namespace, name, "Running") is None:
            raise SandboxUnavailable(f"Sandbox {name} was deleted while it was started: try again")

    async def refuse_stillborn(self, pod: Made, *, lasting: bool) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        found = await self.requests.get(SANDBOXES, namespace, name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise SandboxUnavailable("the sandbox's Sandbox object was deleted while it came up")
        conditions = (found.get("status") or {}).get("conditions") or ()
        ready: Made = next((one for one in conditions if one["type"] == "Ready"), {})
        if ready.get("reason") != "ReconcilerError":
            return
        said = plain_text(str(ready.get("message") or ""))[:_SHOWN]
        if "is forbidden" in said and "cannot" not in said:
            raise forbidden("create", PODS.plural, namespace, said)
        if lasting:
            raise SandboxUnavailable(f"the controller of agent-sandbox makes no Pod: {said}")

    def absent(self, pod: Made) -> str:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        return (
            f"the controller of agent-sandbox made none for Sandbox {name} in namespace {namespace!r}. Check that it "
            "runs, or set sandbox.kubernetes.mode: pods"
        )

    async def stop(self, owner: Owner | None, name: str) -> None:
        if await self._set(self.site.namespace_of(owner), name, "Suspended") is None:
            await super().remove(owner, name)  # its Sandbox was deleted, or it is a Pod of the mode pods
        else:
            await self.ends.pod_ended(name)

    async def remove(self, owner: Owner | None, name: str) -> None:
        # One of the mode pods is a Pod alone.
        await self.requests.delete(SANDBOXES, self.site.namespace_of(owner), name)
        await self.ended_with(owner, name)

    async def found(self, **labels: str) -> Mapping[str, Owner | None]:
        return {**await self._labelled(PODS, labels), **await self._labelled(SANDBOXES, labels)}

    async def _set(self, namespace: str, name: str, mode: str) -> Made | None:
        return await self.requests.patch(SANDBOXES, namespace, name, {"spec": {"operatingMode": mode}})


async def chosen_workloads(
    requests: KubernetesRequests, site: Site, namespaces: Namespaces, ends: PodEnds
) -> Workloads:
    """Return what the site's mode asks for; raises SandboxUnavailable where the cluster does not serve that."""
    if not await Preflight(requests, site).uses_sandboxes():
        return PodWorkloads(requests, site, namespaces, ends)
    log.info("sandboxes are Sandboxes of %s/%s", SANDBOXES.group, SANDBOXES.version)
    return SandboxWorkloads(requests, site, namespaces, ends)
