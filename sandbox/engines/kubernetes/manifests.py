"""The objects of a gateway instance in the namespace of its sandboxes, as the API takes them (docs/threats.md).

Nothing here talks to the API. Names and labels are made of hashes, so no text of a tenant reaches a Pod, and no secret
does: environment and secrets go with each command, over the channel.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from sandbox.engines.containment import (
    CAPABILITIES,
    CHANNEL_DIRECTORY,
    ENDED_FILE,
    RUNTIME_DIRECTORY,
    RUNTIME_PYTHON,
    STEERING_VARIABLES,
    tmp_limit_bytes,
    user_pair,
)
from sandbox.engines.kubernetes.resources import NAMED, NETWORK_POLICIES, SECRETS, Made, Resource
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Owner, SandboxSpec, digest
from sandbox.tls.identity import gateway_name

_DOMAIN = "airlock.dev"
INSTANCE = f"{_DOMAIN}/instance"
KIND = f"{_DOMAIN}/kind"
TENANT = f"{_DOMAIN}/tenant"
THREAD = f"{_DOMAIN}/thread"
STATE = f"{_DOMAIN}/state"
"""On the Lease of a thread that has a sandbox."""
RECORD = f"{_DOMAIN}/record"

POD_SECURITY = "pod-security.kubernetes.io/enforce"
POD_SECURITY_LEVEL = "baseline"  # the daemon starts as root

POOLED = "pooled"
"""The kind of Pods and claims that have no owner yet."""

RELAY_PORT = 7600
# Of the bundle's directory and the channel's (BUNDLE_GID of sandbox/daemon/supervisor/launch.py).
_CHANNEL_GROUP = 599_999_999
_RELAY_USER = 599_999_998
_GRACE_S = 1
NOT_STARTED = frozenset({"CreateContainerError", "RunContainerError", "CreateContainerConfigError"})
"""Reasons of a container that waits although its image is there."""
_KEYS = "/keys"
_MIB = 1024 * 1024
RELAY_CPUS, RELAY_BYTES = 1, 192 * _MIB
EPHEMERAL = "512Mi"
# All are said: what is not, a LimitRange of the namespace would say, and may say more than the limit.
_EPHEMERAL_REQUEST = "64Mi"
# One that a container's user may write to is world-writable with a kubelet; this one's is closed.
_PREPARE = "import os, shutil; os.mkdir('/channel/socket', 0o770); os.chmod('/channel/socket', 0o770)"
_COPY = f"; shutil.copytree('{RUNTIME_DIRECTORY}', '/bundle/airlock')"
# By its usual name; any other runtime of a policy is the name of a RuntimeClass itself.
_RUNTIME_CLASSES = {"runc": None, "runsc": "gvisor"}


@dataclass(frozen=True)
class Site:
    """Where an instance makes its sandboxes, and what the operator says of every one.

    `runtime_volume`: whether the daemon's bundle is copied from `runtime_image` into each Pod, or mounted, which needs
    image volumes. `gateway_namespace` and `gateway_selector` say which Pods may reach a sandbox's relay, and
    `gateway_cidrs` which addresses outside of Pods. `keys` is the namespace of the instance's key, by default that of
    the gateway. `mode` is what runs a sandbox: a Pod, or a Sandbox of agents.x-k8s.io; "auto" means what is recorded
    of the instance (recorded_mode.py). With `snapshot_class` snapshots are VolumeSnapshots. With `namespace_per_tenant`
    `namespace` has the Leases alone. `tenants` has what is otherwise for some, by digest: of the five fields before.
    """

    instance: str
    namespace: str = "airlock-sandboxes"
    gateway_namespace: str = ""
    gateway_selector: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "airlock"})
    gateway_cidrs: Sequence[str] = ()
    keys: str = ""
    runtime_image: str = "airlock-runtime"
    runtime_volume: Literal["copy", "image"] = "copy"
    namespace_per_tenant: bool = False
    image_pull_secrets: Sequence[str] = ()
    storage_class: str | None = None
    snapshot_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    topology_spread: Sequence[Mapping[str, Any]] = ()
    tenants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mode: Literal["auto", "pods", "agent-sandbox"] = "auto"

    @property
    def keys_namespace(self) -> str:
        return self.keys or self.gateway_namespace or self.namespace

    def name(self, *parts: str) -> str:
        """Return the name of an object of the instance."""
        plain = re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.instance)
        return "-".join(("airlock", self.instance if plain else digest(self.instance)[:12], *parts))

    def labels(self, kind: str, owner: Owner | None = None) -> dict[str, str]:
        found = {"app.kubernetes.io/managed-by": "airlock", INSTANCE: self.instance, KIND: kind}
        return found if owner is None else {**found, TENANT: owner[0], THREAD: owner[1]}

    def selector(self, **labels: str) -> str:
        return ",".join((f"{INSTANCE}={self.instance}", *(f"{_DOMAIN}/{key}={value}" for key, value in labels.items())))

    def lease_name(self, owner: Owner) -> str:
        return self.name("thread", owner[1])

    def namespace_of(self, owner: Owner | None) -> str:
        """Return where the Pods and claims of an owner are, or those without one."""
        return self.namespace if owner is None else self.namespace_of_tenant(owner[0])

    def namespace_of_tenant(self, tenant: str) -> str:
        """Return the namespace of a tenant, a digest."""
        if not self.namespace_per_tenant:
            return self.namespace
        plain = re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,26}[a-z0-9])?", self.instance)  # a name has at most 63 letters
        return f"airlock-{self.instance if plain else digest(self.instance)[:12]}-{tenant}"

    def scope(self, tenant: str = "") -> str:
        """Return where to look for the Pods and claims of a tenant, or of all: "" is any namespace."""
        return self.namespace_of_tenant(tenant) if tenant or not self.namespace_per_tenant else ""

    def shared_name(self, resource: Resource) -> str:
        """Return the name of the one object of a kind in a namespace of sandboxes."""
        return NAMED[resource] if self.namespace_per_tenant else self.name(NAMED[resource].removeprefix("airlock-"))

    def has(self, made: Made) -> bool:
        """Return whether an object is where this instance makes those of its owner: labels anybody can copy."""
        where, tenant = made["metadata"]["namespace"], (made["metadata"].get("labels") or {}).get(TENANT)
        return bool(where == (self.namespace_of_tenant(tenant) if tenant else self.namespace))

    def of(self, owner: Owner | None) -> Self:
        """Return what the operator says of an owner's sandboxes, or of those without one."""
        return self if owner is None else replace(self, **self.tenants.get(owner[0], {}))


def lease(site: Site, owner: Owner) -> Made:
    """Return the Lease of a thread, without record and holder."""
    metadata = {"name": site.lease_name(owner), "labels": site.labels("thread", owner), "annotations": {}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def claim(site: Site, owner: Owner | None, name: str, spec: SandboxSpec) -> Made:
    """Return a volume claim for a thread's files, or for those of a pooled sandbox's later owner."""
    site = site.of(owner)
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(spec.limits.workspace_bytes)}}}
    chosen = {} if site.storage_class is None else {"storageClassName": site.storage_class}
    labels = site.labels(POOLED if owner is None else "workspace", owner)
    metadata = {"name": name, "namespace": site.namespace_of(owner), "labels": labels}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {**size, **chosen}}


def relay_secret(site: Site, identity: bytes, authority: str) -> Made:
    """Return the identity that the relays of all Pods have until they are claimed."""
    data = {"identity.pem": identity.decode("ascii"), "ca.pem": authority}
    return secret(site.shared_name(SECRETS), site.labels("relay"), data)


def secret(name: str, labels: Mapping[str, str], data: Mapping[str, str]) -> Made:
    """Return a Secret of texts."""
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": dict(data)}


def network_policy(site: Site) -> Made:
    """Return what closes the network of every Pod, but for the gateway's way in to the relay."""
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": site.gateway_namespace or site.namespace}}
    gateway = {"namespaceSelector": namespace, "podSelector": {"matchLabels": dict(site.gateway_selector)}}
    addresses = [{"ipBlock": {"cidr": cidr}} for cidr in site.gateway_cidrs]
    spec = {
        # All of a tenant's own namespace, whatever their labels.
        "podSelector": {} if site.namespace_per_tenant else {"matchLabels": {INSTANCE: site.instance}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [gateway, *addresses], "ports": [{"protocol": "TCP", "port": RELAY_PORT}]}],
    }
    metadata = {"name": site.shared_name(NETWORK_POLICIES), "labels": site.labels("network")}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def tenant_namespace(site: Site, tenant: str) -> Made:
    """Return the namespace of a tenant, a digest."""
    labels = {**site.labels("tenant"), TENANT: tenant, POD_SECURITY: POD_SECURITY_LEVEL}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": site.namespace_of_tenant(tenant), "labels": labels},
    }


def pod(
    site: Site, spec: SandboxSpec, owner: Owner | None, name: str, claim_name: str, *, kind: str = "sandbox"
) -> Made:
    """Return the Pod of a sandbox over a claim, whose relay waits to be claimed; a pooled one where it has no owner."""
    site, limits = site.of(owner), spec.limits
    tmp_bytes = min(limits.tmp_bytes, tmp_limit_bytes(limits.memory_bytes))
    volumes: list[Made] = [
        {"name": "workspace", "persistentVolumeClaim": {"claimName": claim_name}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(tmp_bytes)}},
        {"name": "channel", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "keys", "secret": {"secretName": site.shared_name(SECRETS), "defaultMode": 0o444}},
        _bundle_volume(site),
    ]
    body: Made = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        # Nothing resolves names: connections leave by the gateway, which does.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_prepare(site), _relay(site)],
        "containers": [_daemon(site, spec, claim_name)],
        "volumes": volumes,
    }
    runtime_class = _RUNTIME_CLASSES.get(spec.runtime, spec.runtime)
    body |= _placement(site) | ({} if runtime_class is None else {"runtimeClassName": runtime_class})
    labels = site.labels(POOLED if owner is None else kind, owner)
    metadata = {"name": name, "namespace": site.namespace_of(owner), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _placement(site: Site) -> Made:
    """Return what the operator says of every Pod."""
    all_of_instance = {"matchLabels": {INSTANCE: site.instance}}
    chosen: Mapping[str, Any] = {
        "nodeSelector": dict(site.node_selector),
        "tolerations": [dict(one) for one in site.tolerations],
        "topologySpreadConstraints": [{"labelSelector": all_of_instance, **one} for one in site.topology_spread],
        "imagePullSecrets": [{"name": name} for name in site.image_pull_secrets],
    }
    return {name: value for name, value in chosen.items() if value}


def sandbox(pod: Made) -> Made:
    """Return the Sandbox of agents.x-k8s.io whose controller makes a Pod.

    The claim is the Pod's, not the Sandbox's, for the controller removes its own with it. Labels reach the Pod by the
    template: the network policy and the mirror go by them.
    """
    metadata = pod["metadata"]
    template = {"metadata": {"labels": metadata["labels"]}, "spec": pod["spec"]}
    spec = {"operatingMode": "Running", "podTemplate": template}
    return {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": metadata, "spec": spec}


def _bundle_volume(site: Site) -> Made:
    if site.runtime_volume == "image":
        return {"name": "bundle", "image": {"reference": site.runtime_image, "pullPolicy": "IfNotPresent"}}
    return {"name": "bundle", "emptyDir": {"sizeLimit": "256Mi"}}


def _bundle_mount(site: Site) -> Made:
    below = "opt/airlock" if site.runtime_volume == "image" else "airlock"
    return {"name": "bundle", "mountPath": RUNTIME_DIRECTORY, "subPath": below, "readOnly": True}


def _channel_mount() -> Made:
    return {"name": "channel", "mountPath": CHANNEL_DIRECTORY, "subPath": "socket"}


def _prepare(site: Site) -> Made:
    """Return the container that runs first: it makes the closed directory of the channel, and copies the bundle."""
    copies = site.runtime_volume == "copy"
    mounts = [{"name": "channel", "mountPath": "/channel"}]
    return _container(
        "prepare",
        site.runtime_image,
        [*RUNTIME_PYTHON, "-c", _PREPARE + (_COPY if copies else "")],
        user=0,
        mounts=[*mounts, {"name": "bundle", "mountPath": "/bundle"}] if copies else mounts,
    )


def _relay(site: Site) -> Made:
    """Return the container that ends TLS: of files it shares the channel's directory with the daemon, and no other.

    All containers of a Pod share its network, IPC namespace and /dev/shm, so tool code is there, too. The relay must
    use none of it but its port: no shared memory or queue, no abstract socket, nothing on loopback (docs/channel.md).
    """
    options = {
        "--listen": f"$(POD_IP):{RELAY_PORT}",
        "--socket": f"{CHANNEL_DIRECTORY}/daemon.sock",
        "--identity": f"{_KEYS}/identity.pem",
        "--authority": f"{_KEYS}/ca.pem",
        "--gateway": gateway_name(site.instance),
    }
    words = [word for pair in options.items() for word in pair]
    mounts = [_channel_mount(), {"name": "keys", "mountPath": _KEYS, "readOnly": True}]
    command = [*RUNTIME_PYTHON, "-m", "sandbox.tls", *words, "--pooled", "$(POD_NAME)"]
    body = _container("relay", site.runtime_image, command, user=_RELAY_USER, mounts=mounts)
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    known = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    ports = [{"name": "channel", "containerPort": RELAY_PORT}]
    return {**body, "restartPolicy": "Always", "env": known, "ports": ports}


def _daemon(site: Site, spec: SandboxSpec, claim_name: str) -> Made:
    limits = spec.limits
    # By the claim: files keep their user in every later Pod over them.
    tool_user, daemon_user = user_pair(digest("claim", site.instance, claim_name))
    options = {
        "--socket": f"{CHANNEL_DIRECTORY}/daemon.sock",
        "--workspace": WORKSPACE,
        "--workspace-bytes": limits.workspace_bytes,
        "--workspace-files": limits.workspace_files,
        "--disk-reserve-bytes": limits.disk_reserve_bytes,
        "--seccomp-filters": int(limits.seccomp_filters),
        # A kubelet gives a tmpfs no limit of files (sandbox/engines/posture.py).
        "--extended-attributes": 0,
        # A Pod cannot say these. The kernel counts processes by user, and these users are the claim's alone.
        "--open-files": limits.open_files,
        "--processes": limits.pids,
        "--file-bytes": limits.workspace_bytes,
        "--tool-uid": tool_user,
        "--tool-gid": tool_user,
        "--daemon-uid": daemon_user,
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    body = _container(
        "main",
        spec.image,
        [*RUNTIME_PYTHON, "-m", "sandbox.daemon", *words],
        user=0,
        capabilities=CAPABILITIES,
        mounts=[
            {"name": "workspace", "mountPath": WORKSPACE},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            _channel_mount(),
            _bundle_mount(site),
        ],
    )
    millis = millis_of(limits.cpus)
    amounts = {"cpu": f"{millis}m", "memory": str(limits.memory_bytes), "ephemeral-storage": EPHEMERAL}
    # Most sandboxes are idle: a tenth of the processors is set aside; and all memory, which cannot be taken back.
    requests = {"cpu": f"{max(millis // 10, 1)}m", "memory": str(limits.memory_bytes)}
    requests["ephemeral-storage"] = _EPHEMERAL_REQUEST
    # The image may set these, and no Pod can unset them.
    env = [{"name": name, "value": value} for name, value in STEERING_VARIABLES.items()]
    return {**body, "env": env, "workingDir": WORKSPACE, "resources": {"limits": amounts, "requests": requests}}


def bare_pod(site: Site, name: str, labels: Mapping[str, str], containers: Sequence[Made]) -> Made:
    """Return a Pod without volumes, whose containers run once, where sandboxes do."""
    body: Made = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": list(containers),
    }
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body | _placement(site)}


def bare_container(name: str, image: str, command: Sequence[str]) -> Made:
    """Return a container that has nothing and may do nothing."""
    return _container(name, image, command, user=_RELAY_USER, mounts=[])


def millis_of(cpus: float) -> int:
    """Return thousandths of a processor, as the API counts them."""
    return max(round(cpus * 1000), 1)


def _container(
    name: str, image: str, command: Sequence[str], *, user: int, mounts: list[Made], capabilities: Sequence[str] = ()
) -> Made:
    allowed: Made = {"drop": ["ALL"], **({"add": list(capabilities)} if capabilities else {})}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {
            "runAsUser": user,
            "runAsNonRoot": user != 0,
            "runAsGroup": _CHANNEL_GROUP,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": allowed,
        },
        "resources": {
            "limits": {"cpu": str(RELAY_CPUS), "memory": str(RELAY_BYTES), "ephemeral-storage": EPHEMERAL},
            "requests": {"cpu": "10m", "memory": str(32 * _MIB), "ephemeral-storage": _EPHEMERAL_REQUEST},
        },
        "terminationMessagePath": ENDED_FILE if _channel_mount() in mounts else "/dev/termination-log",
        "volumeMounts": mounts,
    }
