"""The kinds of objects that an engine uses, and the verbs that are asked of each: what its account is granted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Made: TypeAlias = dict[str, Any]
"""An object as the API has it."""


@dataclass(frozen=True)
class Resource:
    """A kind of object, as the API and its roles name it."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object or of all; without a namespace of one that is in none, or of all in any."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{scope}/{self.plural}{f'/{name}' if name else ''}"


PODS = Resource("", "v1", "pods")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
SECRETS = Resource("", "v1", "secrets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses")
QUOTAS = Resource("", "v1", "resourcequotas")
LIMIT_RANGES = Resource("", "v1", "limitranges")
NAMESPACES = Resource("", "v1", "namespaces")
SANDBOXES = Resource("agents.x-k8s.io", "v1beta1", "sandboxes")
VOLUME_SNAPSHOTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots")
SNAPSHOT_CLASSES = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses")

# Of the warm pool, which there is in one namespace for all tenants.
_OF_POOL: Mapping[Resource, frozenset[str]] = {PODS: frozenset({"get", "patch"}), CLAIMS: frozenset({"get", "patch"})}

VERBS: Mapping[Resource, frozenset[str]] = {
    PODS: frozenset({"create", "delete", "list", "watch"}) | _OF_POOL[PODS],
    CLAIMS: frozenset({"create", "delete", "list"}) | _OF_POOL[CLAIMS],
    LEASES: frozenset({"create", "delete", "get", "list", "update", "watch"}),
    SECRETS: frozenset({"create", "get", "update"}),
    NETWORK_POLICIES: frozenset({"create", "get", "update"}),
    QUOTAS: frozenset({"create", "get", "update"}),
    LIMIT_RANGES: frozenset({"create", "get", "update"}),
}
"""All that is asked of the namespace of sandboxes; a request of another verb is an error of this program.

With a namespace for each tenant only the Leases are there, and the rest is asked of the whole cluster: CLUSTER_VERBS.
"""

CLUSTER_VERBS: Mapping[Resource, frozenset[str]] = {
    NAMESPACES: frozenset({"create", "delete", "get"}),
    **{
        resource: verbs - _OF_POOL.get(resource, frozenset()) for resource, verbs in VERBS.items() if resource != LEASES
    },
}
"""All that is asked of the cluster with a namespace for each tenant: what a role grants in namespaces to come, it
grants in all. So get and update of what is in NAMED are for objects of that name alone."""

NAMED: Mapping[Resource, str] = {
    SECRETS: "airlock-relay",
    NETWORK_POLICIES: "airlock-sandboxes",
    QUOTAS: "airlock-limits",
    LIMIT_RANGES: "airlock-limits",
}
"""The one object of a kind in each tenant's namespace, by its name."""

SANDBOX_VERBS: Mapping[Resource, frozenset[str]] = {SANDBOXES: frozenset({"create", "delete", "get", "list", "patch"})}
"""What is asked besides in the mode agent-sandbox, of the namespaces of sandboxes."""

SNAPSHOT_VERBS: Mapping[Resource, frozenset[str]] = {VOLUME_SNAPSHOTS: frozenset({"create", "delete", "get", "list"})}
"""What is asked besides where snapshots are copies of volumes, of the namespaces of sandboxes."""

GATEWAY_VERBS: Mapping[Resource, frozenset[str]] = {SECRETS: frozenset({"create", "get"})}
"""All that is asked of the gateway's own namespace, for the key of the instance's authority."""

REMOVAL_VERBS: Mapping[Resource, frozenset[str]] = {
    **dict.fromkeys((SECRETS, NETWORK_POLICIES, QUOTAS, LIMIT_RANGES), frozenset({"delete"})),
    NAMESPACES: frozenset({"list"}),
    **SNAPSHOT_VERBS,
}
"""What `airlock uninstall` asks besides; no gateway does, and its account is not granted it."""

_OF_EVERYBODY: Mapping[Resource, frozenset[str]] = {
    REVIEWS: frozenset({"create"}),
    STORAGE_CLASSES: frozenset({"get"}),
    SNAPSHOT_CLASSES: frozenset({"get"}),
}
# No role has to grant these: everybody may ask what he may do, and a class that cannot be read is merely not known.

_GRANTED = {**CLUSTER_VERBS, **VERBS, **SANDBOX_VERBS, **SNAPSHOT_VERBS, **_OF_EVERYBODY}
ASKED = {resource: verbs | REMOVAL_VERBS.get(resource, frozenset()) for resource, verbs in _GRANTED.items()}
"""All that is ever asked."""
