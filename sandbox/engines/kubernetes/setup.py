"""Setup: the key of an instance, made once. It signs the certificates of the channel.

It is a Secret in the gateway's own namespace, which the replicas of the instance share: the first one makes it. The
identity that relays have until they are claimed is a Secret beside the sandboxes (namespaces.py).
"""

import base64
import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.engines.kubernetes import manifests, recorded_mode
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.resources import SECRETS, Made
from sandbox.errors import SandboxUnavailable
from sandbox.tls.identity import pooled_name

_POOLED = "pooled"
_AUTHORITY = "authority.pem"
_ENGINE = "engine"


def unclaimed_name(site: Site, tenant: str = "") -> str:
    """Return the name that relays have until they are claimed: one for all, or for all of a tenant, a digest."""
    return pooled_name(site.instance, tenant if tenant and site.namespace_per_tenant else _POOLED)


@dataclass
class Setup:
    """Makes what is shared, or reads what another process has made."""

    requests: KubernetesRequests
    site: Site
    uses_sandboxes: bool = field(default=False, init=False)
    """Whether sandboxes are Sandboxes of agents.x-k8s.io; known once it is prepared."""
    _authority: ChannelAuthority | None = field(default=None, init=False)

    @property
    def authority(self) -> ChannelAuthority:
        if self._authority is None:
            raise SandboxUnavailable("the engine is not prepared")
        return self._authority

    async def prepare_alone(self) -> None:
        """Be prepared without a word to other processes: with a key that none of them gets."""
        self.uses_sandboxes = await Preflight(self.requests, self.site).uses_sandboxes()
        self._authority = ChannelAuthority.new(self.site.instance)

    async def engine_id(self) -> str:
        """Return the id of where the workspaces are: the one that the instance's first process drew."""
        return secret_data(await self._shared_secret())[_ENGINE].decode("ascii", "replace")

    async def ping(self) -> None:
        await self.requests.get(SECRETS, self.site.keys_namespace, self.site.name("authority"))

    async def prepare(self) -> None:
        if self._authority is None:
            self.uses_sandboxes = await recorded_mode.uses_sandboxes(self.requests, self.site)
            await Preflight(self.requests, self.site).refuse(sandboxes=self.uses_sandboxes)
            self._authority = await self._shared_authority()

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
            return ChannelAuthority.of(secret_data(found)[_AUTHORITY], site.instance)
        except (KeyError, ValueError) as error:
            raise SandboxUnavailable(
                f"Secret {name} in namespace {site.keys_namespace!r} is not an authority of this instance ({error}): "
                "delete it while no gateway runs, and the sandboxes' Pods with it"
            ) from error


def secret_data(secret: Made | None) -> Mapping[str, bytes]:
    """Return what is in a Secret, {} for one that cannot be read."""
    try:
        return {key: base64.b64decode(value) for key, value in ((secret or {}).get("data") or {}).items()}
    except (binascii.Error, TypeError):
        return {}
