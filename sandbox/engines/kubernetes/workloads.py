"""Workloads: what runs a sandbox on the cluster, by the sandbox's id.

Either a Pod, or a Sandbox of agents.x-k8s.io, whose controller makes a Pod of the same name. The rest of the engine
knows of the Pod alone: its address, and why it ended. What distinguishes the two is here.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sandbox.client.replies import plain_text
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.namespaces import Namespaces
from sandbox.engines.kubernetes.records import owner_in
from sandbox.engines.kubernetes.refusals import forbidden
from sandbox.engines.kubernetes.resources import PODS, SANDBOXES, Made, Resource
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner

_SHOWN = 300
# The controller changes a Sandbox a few times while its Pod comes up or ends.
_ATTEMPTS = 8

Held = Callable[[], Awaitable[None]]
"""Makes sure that the gate of what is to end is this process' own still (Gate.hold), or raises SandboxError."""


class Workloads(Protocol):
    """Its methods may be repeated, and raise SandboxError."""

    resource: ClassVar[Resource]

    def relabelled(self, labels: Mapping[str, str]) -> Made:
        """Return the change that gives what runs, and its Pod, other labels."""

    async def ended_with(self, name: str) -> None:
        """Have a Pod end whose object of `resource` is deleted."""

    def body(self, pod: Made) -> Made:
        """Return the object that is made for a Pod."""

    async def start(self, pod: Made) -> None:
        """Have a Pod made, or the stopped one of its name started again."""

    async def refuse_stillborn(self, pod: Made, *, lasting: bool) -> None:
        """Raise SandboxUnavailable, of the fitting class, where no Pod is made; if `lasting` also for what may pass."""

    def absent(self, pod: Made) -> str:
        """Return what to do about a Pod that was not made in time; "" where the gateway makes it itself."""

    async def stop(self, owner: Owner | None, name: str, held: Held) -> None:
        """End a Pod so that it can be started again, and wait for its end."""

    async def remove(self, owner: Owner | None, name: str, held: Held | None = None) -> None:
        """Remove all there is, and wait for the Pod's end; without `held` what no other process can make again."""

    async def found(self, **labels: str) -> Mapping[str, Owner | None]:
        """Return whose each is of what there is with some labels, stopped or not, and is not being deleted."""


class PodEnds(Protocol):
    """The ends of the Pods that are known, by their names."""

    async def pod_removed(self, owner: Owner | None, name: str, held: Held | None = None) -> None:
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

    async def ended_with(self, name: str) -> None:
        await self.ends.pod_ended(name)

    def body(self, pod: Made) -> Made:
        return pod

    async def start(self, pod: Made) -> None:
        await self.namespaces.create(PODS, pod)

    async def refuse_stillborn(self, pod: Made, *, lasting: bool) -> None: ...

    def absent(self, pod: Made) -> str:
        del pod
        return ""

    async def stop(self, owner: Owner | None, name: str, held: Held) -> None:
        await self.remove(owner, name, held)

    async def remove(self, owner: Owner | None, name: str, held: Held | None = None) -> None:
        await self.ends.pod_removed(owner, name, held)

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

    async def ended_with(self, name: str) -> None:
        await self.ends.pod_removed(None, name)  # the garbage collector would take longer

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

    async def stop(self, owner: Owner | None, name: str, held: Held) -> None:
        namespace = self.site.namespace_of(owner)

        async def suspend(made: Made) -> None:
            if made["spec"].get("operatingMode") != "Suspended":
                await held()
                await self._set(namespace, name, "Suspended", made["metadata"]["resourceVersion"])

        if await self._as_read(namespace, name, suspend):
            await self.ends.pod_ended(name)
        else:
            await super().remove(owner, name, held)  # its Sandbox was deleted, or it is a Pod of the mode pods

    async def remove(self, owner: Owner | None, name: str, held: Held | None = None) -> None:
        namespace = self.site.namespace_of(owner)

        async def delete(made: Made) -> None:
            if held is not None:
                await held()
            await self.requests.delete(SANDBOXES, namespace, name, version=made["metadata"]["resourceVersion"])

        await self._as_read(namespace, name, delete)  # one of the mode pods is a Pod alone
        await super().remove(owner, name, held)  # the garbage collector would take longer

    async def _as_read(self, namespace: str, name: str, change: Callable[[Made], Awaitable[None]]) -> bool:
        """Change a Sandbox as it was read, which keeps its uid when it is resumed; return whether there is one."""
        for _ in range(_ATTEMPTS):
            made = await self.requests.get(SANDBOXES, namespace, name)
            if made is None:
                return False
            with suppress(Conflict):
                await change(made)
                return True
        raise SandboxUnavailable(f"Sandbox {name} changes too often to be stopped or removed: try again")

    async def found(self, **labels: str) -> Mapping[str, Owner | None]:
        return {**await self._labelled(PODS, labels), **await self._labelled(SANDBOXES, labels)}

    async def _set(self, namespace: str, name: str, mode: str, version: str = "") -> Made | None:
        change: Made = {"metadata": {"resourceVersion": version}} if version else {}
        return await self.requests.patch(SANDBOXES, namespace, name, {**change, "spec": {"operatingMode": mode}})
