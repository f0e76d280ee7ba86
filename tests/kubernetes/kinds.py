"""The kinds that the API server for tests serves."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "io.k8s.api.core.v1."
AGENTS = "agents.x-k8s.io"
EXTENSIONS = "extensions.agents.x-k8s.io"


@dataclass(frozen=True)
class Kind:
    """A kind of object, and where it is served."""

    group: str
    version: str
    kind: str
    plural: str
    schema: str
    """Its name in schemas.json, or of the client's model."""
    namespaced: bool = True
    status: bool = False
    """Whether /status is a subresource: then the object's own path ignores its status, and the reverse."""
    returns_deleted: bool = False
    """Whether to delete answers with the object, not with a Status."""
    custom: bool = False
    """Whether a CustomResourceDefinition describes it: errors read differently."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As error messages name the resource: `pods`, `sandboxes.agents.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


def _core(kind: str, plural: str, **more: bool) -> Kind:
    return Kind("", "v1", kind, plural, CORE + kind, **more)


def _custom(group: str, kind: str, plural: str, *, status: bool) -> Kind:
    schema = f"io.x-k8s.{'agents' if group == AGENTS else 'agents.extensions'}.v1beta1.{kind}"
    return Kind(group, "v1beta1", kind, plural, schema, status=status, custom=True)


POD = _core("Pod", "pods", status=True, returns_deleted=True)
CLAIM = _core("PersistentVolumeClaim", "persistentvolumeclaims", status=True, returns_deleted=True)
VOLUME = _core("PersistentVolume", "persistentvolumes", namespaced=False, status=True, returns_deleted=True)
NAMESPACE = _core("Namespace", "namespaces", namespaced=False, status=True)
NODE = _core("Node", "nodes", namespaced=False, status=True)
SECRET = _core("Secret", "secrets")
CONFIG_MAP = _core("ConfigMap", "configmaps")
EVENT = _core("Event", "events")
QUOTA = _core("ResourceQuota", "resourcequotas", status=True, returns_deleted=True)
LIMIT_RANGE = _core("LimitRange", "limitranges")
SERVICE_ACCOUNT = _core("ServiceAccount", "serviceaccounts", returns_deleted=True)
SERVICE = _core("Service", "services", status=True, returns_deleted=True)
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "V1NetworkPolicy")
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", "V1StorageClass", namespaced=False)
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", "V1RuntimeClass", namespaced=False)
SNAPSHOT_CLASS = Kind(
    "snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", "VolumeSnapshotClass",
    namespaced=False, custom=True,
)  # fmt: skip
SNAPSHOT = Kind(
    "snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots", "VolumeSnapshot", status=True, custom=True
)
SANDBOX = _custom(AGENTS, "Sandbox", "sandboxes", status=True)
SANDBOX_CLAIM = _custom(EXTENSIONS, "SandboxClaim", "sandboxclaims", status=True)
SANDBOX_TEMPLATE = _custom(EXTENSIONS, "SandboxTemplate", "sandboxtemplates", status=False)
WARM_POOL = _custom(EXTENSIONS, "SandboxWarmPool", "sandboxwarmpools", status=True)
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", "V1Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "V1RoleBinding")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "V1ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "V1ClusterRoleBinding",
    namespaced=False,
)  # fmt: skip
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", "V1Lease")
DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions",
    "V1CustomResourceDefinition", namespaced=False, status=True,
)  # fmt: skip

KINDS = (
    POD, CLAIM, NAMESPACE, NODE, SECRET, CONFIG_MAP, EVENT, QUOTA, LIMIT_RANGE, SERVICE_ACCOUNT, SERVICE,
    NETWORK_POLICY, STORAGE_CLASS, RUNTIME_CLASS, SNAPSHOT_CLASS, SNAPSHOT, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE,
    WARM_POOL, ROLE, ROLE_BINDING, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, LEASE, DEFINITION,
    VOLUME,
)  # fmt: skip
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}
