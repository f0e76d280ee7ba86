"""Namespaces: what each namespace of sandboxes has, made before the first one and kept as it should be.

These are the relays' first identity, the network policy, and the limits that the tenants' policies make. A tenant's own
namespace is made, too. What is there is looked at again once a minute, and when the cluster refuses something for it:
another process may have a newer policy, or may have deleted the tenant.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.engines.background import BackgroundTasks
from sandbox.engines.kubernetes import allowance, manifests
from sandbox.engines.kubernetes.allowance import Allowance, Allowances
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests, NamespaceMissing
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.resources import (
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    QUOTAS,
    SECRETS,
    Made,
    Resource,
)
from sandbox.engines.kubernetes.setup import Setup, secret_data, unclaimed_name
from sandbox.errors import EngineFull, SandboxUnavailable
from sandbox.sandbox import SandboxLimits, SandboxSpec, digest

log = logging.getLogger(__name__)

_SMALLEST = SandboxLimits(memory_bytes=0, cpus=0, workspace_bytes=0)

_LOOK_AGAIN_S = 60.0
# The pauses in which a new quota is waited for; then the first request says what is wrong.
_COUNTING_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
# Of namespaces, so that many tenants do not fill this process' memory.
_KNOWN_LIMIT = 4096


@dataclass(frozen=True)
class _Known:
    """A namespace that was in order at a time of the loop: whose it is, and what fits into it.

    `tenant` is None for all tenants' namespace, `largest` where the cluster limits nothing.
    """

    tenant: str | None
    largest: SandboxLimits | None
    looked_s: float

    def takes(self, limits: SandboxLimits) -> bool:
        return self.largest is None or _covered(self.largest, limits) == self.largest


@dataclass
class Namespaces:
    """Keeps the namespaces of an instance's sandboxes in order."""

    requests: KubernetesRequests
    site: Site
    setup: Setup
    allowances: Allowances
    background: BackgroundTasks
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _looking: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def prepare(self) -> None:
        """Have the namespace of all tenants in order, if there is one; raises SandboxError."""
        namespace = self.site.namespace
        if not self.site.namespace_per_tenant and namespace not in self._known:
            await self._look(namespace, None, _SMALLEST)

    async def ready(self, spec: SandboxSpec) -> None:
        """Have the namespace of a spec's tenant in order; raises SandboxError."""
        namespace = self.site.namespace_of_tenant(digest(spec.tenant))
        tenant = spec.tenant if self.site.namespace_per_tenant else None
        for _ in range(2):  # the look of another caller may have been for a smaller sandbox
            known, now_s = self._known.get(namespace), asyncio.get_running_loop().time()
            if known is not None and now_s - known.looked_s <= _LOOK_AGAIN_S and known.takes(spec.limits):
                return
            await self._look(namespace, tenant, spec.limits)

    async def create(self, resource: Resource, made: Made) -> bool:
        """Create an object in a namespace that was ready; return False where there is one of its name.

        Names have a random part, so of a new one an earlier attempt, whose answer was lost, has made it.
        """
        namespace, began_s = made["metadata"]["namespace"], asyncio.get_running_loop().time()
        with suppress(Conflict):
            try:
                await self.requests.create(resource, namespace, made)
            except (EngineFull, NamespaceMissing):
                await self._look_since(namespace, began_s)
                await self.requests.create(resource, namespace, made)
            return True
        return False

    async def _look_since(self, namespace: str, since_s: float) -> None:
        """Look at a namespace again, unless that was done since a time."""
        known = self._known.get(namespace)
        if known is not None and known.looked_s <= since_s:
            await self._look(namespace, known.tenant, known.largest or _SMALLEST)

    async def _look(self, namespace: str, tenant: str | None, limits: SandboxLimits) -> None:
        """Have a namespace in order. Callers at the same time wait for one look, and get its error."""
        looking = self._looking.get(namespace)
        if looking is None:
            looking = self.background.begin(self._put_in_order(namespace, tenant, limits))
            self._looking[namespace] = looking
            looking.add_done_callback(partial(self._looked, namespace))
        await asyncio.shield(looking)

    def _looked(self, namespace: str, looking: asyncio.Task[None]) -> None:
        del self._looking[namespace]
        if not looking.cancelled():
            looking.exception()  # retrieved: every caller may have gone away

    async def remove(self, tenant: str) -> None:
        """Delete the namespace of a tenant, a digest; what is still in it the cluster ends."""
        if not self.site.namespace_per_tenant:
            return
        name = self.site.namespace_of_tenant(tenant)
        self._known.pop(name, None)
        found = await self.requests.get(NAMESPACES, "", name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        self._refuse_foreign(found, tenant)
        await self.requests.delete(NAMESPACES, "", name, version=found["metadata"]["resourceVersion"])

    async def _put_in_order(self, namespace: str, tenant: str | None, limits: SandboxLimits) -> None:
        """Make or correct what a namespace has, for sandboxes of these limits too."""
        looked_s = asyncio.get_running_loop().time()
        if tenant is not None:
            await self._make(manifests.tenant_namespace(self.site, digest(tenant)))
        unclaimed = unclaimed_name(self.site, "" if tenant is None else digest(tenant))
        await self._shares_identity(namespace, self.setup.authority, unclaimed)
        await self._have(NETWORK_POLICIES, namespace, manifests.network_policy(self.site))
        allowed = await self.allowances(tenant)
        if allowed is not None:
            allowed = allowed.covering(limits)
            await self._have(LIMIT_RANGES, namespace, allowance.limit_range(self.site, allowed))
            await self._counted(namespace, allowance.resource_quota(self.site, allowed))
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known[namespace] = _Known(tenant, None if allowed is None else allowed.largest, looked_s)

    async def _make(self, wanted: Made) -> None:
        """Have a tenant's namespace."""
        name = wanted["metadata"]["name"]
        found = await self.requests.get(NAMESPACES, "", name)
        if found is None:
            try:
                await self.requests.create(NAMESPACES, "", wanted)
                log.info("namespace %s was created for a tenant", name)
                return
            except Conflict:
                found = await self.requests.get(NAMESPACES, "", name) or wanted
        if found["metadata"].get("deletionTimestamp"):
            raise SandboxUnavailable(
                f"namespace {name!r} of this tenant is being deleted, with what was in it: wait until it is gone; if "
                f"that takes long, `kubectl describe namespace {name}` says what keeps it"
            )
        self._refuse_foreign(found, wanted["metadata"]["labels"][manifests.TENANT])
        level = found["metadata"]["labels"].get(manifests.POD_SECURITY)
        if level != manifests.POD_SECURITY_LEVEL:
            raise SandboxUnavailable(
                f"namespace {name!r} enforces Pod Security {level or 'privileged'!r}: label it with "
                f"{manifests.POD_SECURITY}={manifests.POD_SECURITY_LEVEL}"
            )

    def _refuse_foreign(self, found: Made, tenant: str) -> None:
        name, labels = found["metadata"]["name"], found["metadata"].get("labels") or {}
        if (labels.get(manifests.INSTANCE), labels.get(manifests.TENANT)) != (self.site.instance, tenant):
            raise SandboxUnavailable(
                f"namespace {name!r} exists and is not this gateway's: delete it if nothing needs it, for the name is "
                "that of a tenant's own namespace"
            )

    async def _shares_identity(self, namespace: str, authority: ChannelAuthority, unclaimed: str) -> None:
        """Have the relays' Secret of this authority, renewed well before it expires."""
        site = self.site
        found = await self.requests.get(SECRETS, namespace, site.shared_name(SECRETS))
        data = {} if found is None else secret_data(found)
        if data.get("ca.pem") == authority.ca_pem.encode() and authority.is_fresh(data.get("identity.pem", b"")):
            return
        identity = authority.sandbox_identity(unclaimed)
        await self._write(SECRETS, namespace, manifests.relay_secret(site, identity, authority.ca_pem), found)

    async def _counted(self, namespace: str, quota: Made) -> None:
        """Have a quota. One that was just written admits nothing until the cluster has counted what there is."""
        if not await self._have(QUOTAS, namespace, quota):
            return
        for pause_s in _COUNTING_S:
            found = await self.requests.get(QUOTAS, namespace, quota["metadata"]["name"])
            if found is None or (found.get("status") or {}).get("hard") == found["spec"]["hard"]:
                break
            await asyncio.sleep(pause_s)

    async def _have(self, resource: Resource, namespace: str, wanted: Made) -> bool:
        """Have an object with this spec; return whether it had to be written."""
        found = await self.requests.get(resource, namespace, wanted["metadata"]["name"])
        if found is not None and found["spec"] == wanted["spec"]:
            return False
        await self._write(resource, namespace, wanted, found)
        return True

    async def _write(self, resource: Resource, namespace: str, wanted: Made, found: Made | None) -> None:
        """Put an object in the place of what was found."""
        with suppress(Conflict):  # another process of the instance was faster, and has made the same
            if found is None:
                await self.requests.create(resource, namespace, wanted)
            else:
                wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                await self.requests.update(resource, namespace, wanted)


def _covered(mine: SandboxLimits, other: SandboxLimits) -> SandboxLimits:
    return Allowance(0, 0, mine).covering(other).largest
