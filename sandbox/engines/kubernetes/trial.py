"""Trial: what `airlock doctor` tries out on a cluster, as an instance of its own, of which nothing is left.

All that a trial makes belongs to one Lease, so that the cluster removes it with that, whatever became of this process:
a trial that was killed is removed by the next one. With a namespace for each tenant it is in two namespaces of its own,
for nothing belongs to a Lease of another namespace: one as a tenant has it, and one that no network policy closes. It
takes no permission that a gateway does not have.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.boot import Boot, Inspection
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import INSTANCE, KIND, Site
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.kubernetes.resources import CLAIMS, LEASES, NAMESPACES, PODS, Made
from sandbox.engines.lifetime import Lifetime
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import Owner, Sandbox, SandboxSpec, digest
from sandbox.transition import ignored

log = logging.getLogger(__name__)

_KIND = "trial"
_OUTSIDE = "outside"
OWNER: Owner = (digest("trial"), digest("trial"))
"""Whose a trial's sandboxes are."""
_POLL_S = 0.1
_POD_S = 120.0
_GONE_S = 30.0
# No trial takes as long: one that is older was left by a process that was killed.
_OLD_S = 900.0


@dataclass(frozen=True)
class Trial:
    """A trial that is under way; `site` is that of its own instance."""

    requests: KubernetesRequests
    site: Site

    async def wait_for(self, part: str, seen: Callable[[Made], bool]) -> Made:
        """Return a Pod once something is seen of it. Raises SandboxError if it cannot start, or takes too long."""
        name = self.site.name(part)
        deadline_s = time.monotonic() + _POD_S
        while True:
            made = next((one for one in await self._pods() if one["metadata"]["name"] == name), None)
            if made is None:
                raise SandboxUnavailable(f"the Pod {name} of the trial was deleted meanwhile")
            if seen(made):
                return made
            pod = Pod.of(made)
            pod.refuse_stillborn()
            if time.monotonic() > deadline_s:
                raise pod.full() if pod.waits else SandboxUnavailable(f"Pod {name} did not start in {_POD_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def start(self, part: str, containers: Sequence[Made], *, inside: bool) -> None:
        """Start a Pod of containers; one that is `inside` has the labels of a sandbox, and so its network policy."""
        labels = self.site.labels(_KIND) if inside else {**self.site.labels(_KIND), INSTANCE: self._outside}
        body = manifests.bare_pod(self.site, self.site.name(part), labels, containers)
        await self.requests.create(PODS, self.inside if inside else self._beyond, body)

    async def stop(self, part: str) -> None:
        await self.requests.delete(PODS, self.inside, self.site.name(part))

    @property
    def inside(self) -> str:
        """The namespace of the trial's sandboxes."""
        return self.site.namespace_of(OWNER)

    @property
    def _beyond(self) -> str:
        """A namespace that the network policy of sandboxes does not close as a whole."""
        return self.site.namespace_of_tenant(digest(_OUTSIDE))

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, inspection: Inspection, *, volume: bool) -> AsyncIterator[Sandbox]:
        """Have a sandbox as a gateway makes it, also with its volume if that goes when its claim does."""
        # In the trial's place, and as the operator wants the sandboxes of the spec's own tenant.
        site = replace(self.site, tenants={OWNER[0]: self.site.tenants.get(digest(spec.tenant), {})})
        spec = replace(spec, tenant=_KIND)
        parts = Parts(self.requests, site, Lifetime(None, time.time), ignored)
        owner, name = OWNER, site.name("sandbox", secrets.token_hex(4))
        record = Record("running", name, name, epoch=parts.new_epoch())
        body = manifests.pod(site, spec, owner, name, name)
        try:
            await parts.setup.prepare_alone()
            await parts.prepared()
            await parts.namespaces.ready(spec)
            if volume:
                await self.requests.create(CLAIMS, self.inside, manifests.claim(site, owner, name, spec))
            else:
                body["spec"]["volumes"] = [{"name": "workspace", "emptyDir": {}}, *body["spec"]["volumes"][1:]]
            boot = Boot(parts, inspection)
            one = await boot.started(owner, record, body)
            try:
                yield ChannelSandbox(name, spec, one.channel, await boot.verified(one, spec))
            finally:
                one.close()
        finally:
            await parts.pods.close()
            await parts.leases.close()

    async def clean(self) -> None:
        """Remove the Pods and claims, rather than wait for the cluster to collect them."""
        for pod in await self._pods():
            await self.requests.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
        claims, _ = await self.requests.list(CLAIMS, self.inside, self._selector)
        for claim in claims:
            await self.requests.delete(CLAIMS, self.inside, claim["metadata"]["name"])

    async def gone(self) -> bool:
        """Wait until nothing is left, as far as that can be seen; return whether that came."""
        deadline_s = time.monotonic() + _GONE_S
        while time.monotonic() < deadline_s:
            claims, _ = await self.requests.list(CLAIMS, self.inside, self._selector)
            if not claims and not await self._pods() and not await self._namespaces():
                return True
            await asyncio.sleep(_POLL_S)
        return False

    @property
    def _outside(self) -> str:
        return f"{self.site.instance}-{_OUTSIDE}"

    @property
    def _selector(self) -> str:
        return f"{INSTANCE} in ({self.site.instance},{self._outside})"

    async def _pods(self) -> Sequence[Made]:
        found, _ = await self.requests.list(PODS, self.site.scope(), self._selector)
        return found

    async def make_namespaces(self) -> None:
        for tenant in self._tenants:
            await self.requests.create(NAMESPACES, "", manifests.tenant_namespace(self.site, tenant))

    async def remove_namespaces(self) -> None:
        for tenant in self._tenants:
            await self.requests.delete(NAMESPACES, "", self.site.namespace_of_tenant(tenant))

    async def _namespaces(self) -> Sequence[Made]:
        names = [self.site.namespace_of_tenant(tenant) for tenant in self._tenants]
        found = [await self.requests.get(NAMESPACES, "", name) for name in names]
        return [made for made in found if made is not None]

    @property
    def _tenants(self) -> Sequence[str]:
        return (OWNER[0], digest(_OUTSIDE)) if self.site.namespace_per_tenant else ()


@asynccontextmanager
async def trial(requests: KubernetesRequests, site: Site) -> AsyncIterator[Trial]:
    """Have a trial, and leave nothing of it, nor of one that was killed long ago. Raises SandboxError."""
    await _sweep(requests, site)
    own = replace(site, instance=f"{_KIND}-{secrets.token_hex(6)}")
    name, where, under_way = own.name(_KIND), site.namespace, Trial(requests, own)
    metadata = {"name": name, "labels": own.labels(_KIND)}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    try:
        made = await requests.create(LEASES, where, lease)
        owner = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": name, "uid": made["metadata"]["uid"]}
        requests.owner = None if site.namespace_per_tenant else owner
        try:
            await under_way.make_namespaces()
            yield under_way
        finally:
            requests.owner = None
            with suppress(SandboxError):
                await under_way.clean()
    finally:
        await under_way.remove_namespaces()
        await requests.delete(LEASES, where, name)
    if not await under_way.gone():
        log.warning("objects of the trial with the label %s=%s are still being removed", INSTANCE, own.instance)


def statuses_of(pod: Made) -> Sequence[Made]:
    """Return what a kubelet says of a Pod's containers so far."""
    return (pod.get("status") or {}).get("containerStatuses") or ()


async def _sweep(requests: KubernetesRequests, site: Site) -> None:
    """Remove the Leases of trials that were killed, and their namespaces: what belongs to them goes, too."""
    found, _ = await requests.list(LEASES, site.namespace, f"{KIND}={_KIND}")
    for lease in found:
        if _age_s(lease["metadata"]) > _OLD_S:
            instance = lease["metadata"]["labels"].get(INSTANCE, "")
            if instance.startswith(f"{_KIND}-"):  # never that of a gateway
                await Trial(requests, replace(site, instance=instance)).remove_namespaces()
            await requests.delete(LEASES, site.namespace, lease["metadata"]["name"])


def _age_s(metadata: Mapping[str, str]) -> float:
    made = datetime.fromisoformat(str(metadata.get("creationTimestamp")))
    return (datetime.now(UTC) - made).total_seconds()
