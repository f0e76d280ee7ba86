"""Setup: what all sandboxes of an instance share, made once: keys, the relays' first identity, the network policy.

The key signs the certificates of the channel. It is a Secret in the gateway's own namespace, which the replicas of the
instance share: the first one makes it. The identity that relays have until they are claimed is a Secret beside the
sandboxes, mounted in the relays' containers alone.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import (
    NETWORK_POLICIES,
    SECRETS,
    Conflict,
    KubernetesRequests,
    Made,
    Resource,
)
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.errors import SandboxUnavailable
from sandbox.tls.identity import pooled_name

_POOLED = "pooled"
_AUTHORITY = "authority.pem"
_ENGINE = "engine"


def unclaimed_name(instance: str) -> str:
    """Return the name that the relays of an instance have until they are claimed, all the same one."""
    return pooled_name(instance, _POOLED)


@dataclass
class Setup:
    """Makes what is shared, or reads what another process has made."""

    requests: KubernetesRequests
    site: Site
    _authority: ChannelAuthority | None = field(default=None, init=False)

    @property
    def authority(self) -> ChannelAuthority:
        if self._authority is None:
            raise SandboxUnavailable("the engine is not prepared")
        return self._authority

    async def engine_id(self) -> str:
        """Return the id of where the workspaces are: the one that the instance's first process drew."""
        return _data(await self._shared_secret())[_ENGINE].decode("ascii", "replace")

    async def ping(self) -> None:
        await self.requests.get(SECRETS, self.site.namespace, self.site.name("relay"))

    async def prepare(self) -> None:
        if self._authority is None:
            await Preflight(self.requests, self.site).refuse()
            authority = await self._shared_authority()
            await self._share_identity(authority)
            await self._close_network()
            self._authority = authority

    async def _shared_secret(self) -> Made | None:
        """Return the Secret of the authority, made if there is none."""
        site, name = self.site, self.site.name("authority")
        found = await self.requests.get(SECRETS, site.keys_namespace, name)
        if found is not None:
            return found
        pem = ChannelAuthority.new(site.instance).pem.decode("ascii")
        data = {_AUTHORITY: pem, _ENGINE: f"kubernetes-{secrets.token_hex(8)}"}
        try:
            made = manifests.secret(name, site.labels("authority"), data)
            return await self.requests.create(SECRETS, site.keys_namespace, made)
        except Conflict:
            return await self.requests.get(SECRETS, site.keys_namespace, name)

    async def _shared_authority(self) -> ChannelAuthority:
        site, name = self.site, self.site.name("authority")
        found = await self._shared_secret()
        try:
            return ChannelAuthority.of(_data(found)[_AUTHORITY], site.instance)
        except (KeyError, ValueError) as error:
            raise SandboxUnavailable(
                f"Secret {name} in namespace {site.keys_namespace!r} is not an authority of this instance ({error}): "
                "delete it while no gateway runs, and the sandboxes' Pods with it"
            ) from error

    async def _share_identity(self, authority: ChannelAuthority) -> None:
        """Have the relays' Secret of this authority, renewed well before it expires."""
        site = self.site
        found = await self.requests.get(SECRETS, site.namespace, site.name("relay"))
        data = {} if found is None else _data(found)
        if data.get("ca.pem") == authority.ca_pem.encode() and authority.is_fresh(data.get("identity.pem", b"")):
            return
        identity = authority.sandbox_identity(unclaimed_name(site.instance))
        await self._have(SECRETS, manifests.relay_secret(site, identity, authority.ca_pem), found)

    async def _close_network(self) -> None:
        wanted = manifests.network_policy(self.site)
        found = await self.requests.get(NETWORK_POLICIES, self.site.namespace, wanted["metadata"]["name"])
        if found is None or found["spec"] != wanted["spec"]:
            await self._have(NETWORK_POLICIES, wanted, found)

    async def _have(self, resource: Resource, wanted: Made, found: Made | None) -> None:
        try:
            if found is None:
                await self.requests.create(resource, self.site.namespace, wanted)
            else:
                wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                await self.requests.update(resource, self.site.namespace, wanted)
        except Conflict:  # another process of the instance was faster, and has made the same
            return


def _data(secret: Made | None) -> Mapping[str, bytes]:
    try:
        return {key: base64.b64decode(value) for key, value in ((secret or {}).get("data") or {}).items()}
    except (binascii.Error, TypeError):
        return {}
