"""Preflight: what every sandbox needs of a cluster, asked before the first is made, so that a start can say it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.copied_volumes import snapshot_classes
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.resources import (
    CLAIMS,
    CLUSTER_VERBS,
    GATEWAY_VERBS,
    LEASES,
    NAMED,
    PODS,
    REVIEWS,
    SANDBOX_VERBS,
    SANDBOXES,
    SNAPSHOT_CLASSES,
    SNAPSHOT_VERBS,
    VERBS,
    VOLUME_SNAPSHOTS,
    Made,
    Resource,
)
from sandbox.errors import EngineFull, EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.sandbox import Owner, SandboxSpec, digest

_NO_OWNER: Owner = (digest("preflight"), digest("preflight"))


@dataclass(frozen=True)
class Preflight:
    """Asks the cluster, and makes nothing: what is created is a dry run."""

    requests: KubernetesRequests
    site: Site

    async def refuse(self, *, sandboxes: bool) -> None:
        """Raise SandboxError for what would fail every sandbox, but for what may pass, as a full quota does."""
        missing = await self.missing(sandboxes=sandboxes)
        if missing:
            raise SandboxUnavailable(
                f"the gateway's account lacks permissions: grant {'; '.join(missing)}. The Role of the Helm chart, "
                "deploy/helm/airlock, has them all"
            )
        await self.refuse_snapshot_classes()
        try:
            await self.storage_class(SandboxSpec("", "", ""))
        except EngineFull:
            return

    async def served(self, group: str) -> Sequence[str]:
        """Return the versions of an API group that the cluster serves."""
        found, _ = await self.requests.about(f"/apis/{group}")
        return [str(one["version"]) for one in (found or {}).get("versions") or ()]

    async def uses_sandboxes(self) -> bool:
        """Return whether sandboxes are Sandboxes of agents.x-k8s.io, not Pods alone.

        Raises SandboxUnavailable where the cluster does not serve what the site's mode asks for.
        """
        if self.site.mode == "pods":
            return False
        versions = await self.served(SANDBOXES.group)
        if SANDBOXES.version in versions:
            return True
        if not versions and self.site.mode == "auto":
            return False
        served = f"{SANDBOXES.group}/{', '.join(versions)} alone" if versions else f"no {SANDBOXES.group}"
        raise SandboxUnavailable(
            f"the cluster serves {served}, and sandboxes need {SANDBOXES.version} of it: install agent-sandbox 1.0 or "
            "later, or set sandbox.kubernetes.mode: pods"
        )

    async def refuse_snapshot_classes(self) -> Sequence[Made]:
        """Return the classes of the site's VolumeSnapshots, but for those that the account may not read.

        Raises SandboxUnavailable for what would fail every snapshot, or have it outlive its deletion.
        """
        named = snapshot_classes(self.site)
        if not named:
            return ()
        if VOLUME_SNAPSHOTS.version not in await self.served(VOLUME_SNAPSHOTS.group):
            raise SandboxUnavailable(
                f"the cluster does not serve {VOLUME_SNAPSHOTS.group}/{VOLUME_SNAPSHOTS.version}: install the CSI "
                "snapshot controller and its CustomResourceDefinitions, or unset sandbox.kubernetes.snapshot_class"
            )
        return [found for name in named if (found := await self._snapshot_class(name)) is not None]

    async def _snapshot_class(self, name: str) -> Made | None:
        try:
            found = await self.requests.get(SNAPSHOT_CLASSES, "", name)
        except EngineUnavailable:
            raise
        except SandboxError:  # it may not read classes, which are in no namespace
            return None
        if found is None:
            raise SandboxUnavailable(
                f"VolumeSnapshotClass {name!r} does not exist: create it, or name another one in "
                "sandbox.kubernetes.snapshot_class"
            )
        if found.get("deletionPolicy") != "Delete":
            raise SandboxUnavailable(
                f"VolumeSnapshotClass {name!r} keeps what is deleted, also of an erased tenant: set its deletionPolicy "
                "to Delete, or name another one in sandbox.kubernetes.snapshot_class"
            )
        return found

    async def missing(self, *, sandboxes: bool) -> Sequence[str]:
        """Return what the account may not do, a text for each resource; `sandboxes` as uses_sandboxes() says."""
        first, *others = asked = self.asked(sandboxes=sandboxes)
        answers = [await self._may(*first)]  # alone: it finds out whether anything answers
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._may(*asked)) for asked in others]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        answers += [task.result() for task in tasks]
        listed: dict[tuple[Resource, str], list[str]] = {}
        for (resource, verb, namespace, _), may in zip(asked, answers, strict=True):
            if not may:
                listed.setdefault((resource, namespace), []).append(verb)
        return [
            f"{', '.join(found)} on {resource.plural} in {f'namespace {where!r}' if where else 'all namespaces'}"
            for (resource, where), found in listed.items()
        ]

    def asked(self, *, sandboxes: bool) -> Sequence[tuple[Resource, str, str, str]]:
        """Return what is to be granted: resource, verb, namespace or "" for all, and name or "" for any."""
        site = self.site
        asked = [(site.keys_namespace, GATEWAY_VERBS)]
        if site.namespace_per_tenant:
            asked += [(site.namespace, {LEASES: VERBS[LEASES]}), ("", CLUSTER_VERBS)]
        else:
            asked += [(site.namespace, VERBS)]
        if sandboxes:
            asked += [(site.scope(), SANDBOX_VERBS)]
        if snapshot_classes(site):
            asked += [(site.scope(), SNAPSHOT_VERBS)]
        return [
            (resource, verb, where, NAMED.get(resource, "") if not where and verb in ("get", "update") else "")
            for where, verbs in asked
            for resource, granted in verbs.items()
            for verb in sorted(granted)
        ]

    async def namespace(self) -> SandboxError | None:
        """Return why the namespace takes no objects: it does not exist, or is being deleted."""
        name = _trial_name("lease")
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}
        return await self._refused(LEASES, lease)

    async def storage_class(self, spec: SandboxSpec) -> str:
        """Return the class that a workspace's volume gets. Raises SandboxError if it would get none."""
        site = replace(self.site, namespace_per_tenant=False)  # no tenant has to have one yet
        made = manifests.claim(site, _NO_OWNER, _trial_name("workspace"), spec)
        admitted = await self.requests.create(CLAIMS, self.site.namespace, made, dry_run=True)
        found = admitted["spec"].get("storageClassName")
        if not found:
            raise SandboxUnavailable(
                "the cluster has no default StorageClass for the workspaces' volumes: name one in "
                "sandbox.kubernetes.storage_class, or annotate one with storageclass.kubernetes.io/is-default-class"
            )
        return str(found)

    async def refusal(self, spec: SandboxSpec, owner: Owner = _NO_OWNER) -> SandboxError | None:
        """Return why an owner's namespace does not admit the Pod of a sandbox: its level, quota or RuntimeClass."""
        name = _trial_name("pod")
        return await self._refused(PODS, manifests.pod(self.site, spec, owner, name, name))

    async def _refused(self, resource: Resource, made: Made) -> SandboxError | None:
        try:
            namespace = made["metadata"].get("namespace", self.site.namespace)
            await self.requests.create(resource, namespace, made, dry_run=True)
        except EngineUnavailable:
            raise
        except SandboxError as error:
            return error
        return None

    async def _may(self, resource: Resource, verb: str, namespace: str, name: str) -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": resource.group, "resource": resource.plural}
        attributes |= {"name": name} if name else {}
        review: Made = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        try:
            answer = await self.requests.create(REVIEWS, "", {**review, "spec": {"resourceAttributes": attributes}})
        except EngineUnavailable:
            raise
        except SandboxError:  # it may not even ask: what is refused will say so itself
            return True
        return bool((answer.get("status") or {}).get("allowed"))


def _trial_name(kind: str) -> str:
    return f"airlock-trial-{kind}-{secrets.token_hex(4)}"
