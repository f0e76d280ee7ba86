"""Engines over the cluster for tests: its Pods run as processes, with the real daemon behind the real TLS relay."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sandbox.client.channel import Channel
from sandbox.engines.kubernetes.allowance import Allowances, unlimited
from sandbox.engines.kubernetes.boot import Inspection
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import (
    CLUSTER_VERBS,
    GATEWAY_VERBS,
    LEASES,
    NAMED,
    SANDBOX_VERBS,
    VERBS,
    KubernetesRequests,
    Resource,
)
from sandbox.engines.kubernetes.manifests import Site
from sandbox.sandbox import SandboxSpec
from sandbox.transition import OnTransition, ignored
from sandbox.v1 import channel_pb2 as pb
from tests.kubernetes import images, kinds
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.containers import ContainerStart, Launch

IMAGE = "airlock-sandbox"
RUNTIME_IMAGE = "airlock-runtime"
KEYS_NAMESPACE = "airlock"
ACCOUNT = "gateway"


def runtime(start: ContainerStart) -> Launch:
    """Run the relay, which serves its own network here, or a carrier's daemon; nothing has to be copied."""
    if "sandbox.daemon" in start.command:
        return images.daemon(start)
    if "sandbox.tls" not in start.command:
        return images.nothing(start)
    return images.python_module(replace(start, command=[*start.command, "--serve-own-network"]))


IMAGES = {IMAGE: images.daemon, RUNTIME_IMAGE: runtime}


class NoWalls(Inspection):
    """A process of this machine has no walls, and says of no build that it is the bundle's."""

    async def introduced(self, channel: Channel) -> pb.Posture:
        return (await channel.hello(timeout_s=5.0)).posture

    def refuse_weak(self, sandbox_id: str, posture: pb.Posture, spec: SandboxSpec) -> None: ...


def rules(verbs: dict[Resource, frozenset[str]]) -> list[dict[str, list[str]]]:
    return [
        {"apiGroups": [one.group], "resources": [one.plural], "verbs": sorted(verbs)} for one, verbs in verbs.items()
    ]


def cluster_rules() -> list[dict[str, list[str]]]:
    """Return what a gateway that makes namespaces for tenants is granted everywhere."""
    named = {resource: CLUSTER_VERBS[resource] & {"get", "update"} for resource in NAMED}
    others = {resource: verbs - named.get(resource, frozenset()) for resource, verbs in CLUSTER_VERBS.items()}
    return rules(others) + [
        {**rule, "resourceNames": [name]} for rule, name in zip(rules(named), NAMED.values(), strict=True)
    ]


class ClusterSite:
    """Namespaces of one test in a cluster, and the gateway's account, which may do what the engine says it does."""

    def __init__(
        self, cluster: Cluster, directory: Path, namespace: str = "", *, namespace_per_tenant: bool = False
    ) -> None:
        self.cluster = cluster
        self.namespace_per_tenant = namespace_per_tenant
        name = namespace or f"s{secrets.token_hex(4)}"
        self.namespace = cluster.namespace(name, {"pod-security.kubernetes.io/enforce": "baseline"})
        self.keys_namespace = cluster.namespace(f"{name}-gateway")
        cluster.grant(self.namespace, ACCOUNT, [])
        self.token = self._granted()
        self.kubeconfig = cluster.write_kubeconfig(directory / "kubeconfig", self.token)

    def _granted(self) -> str:
        sandboxes = {} if kinds.AGENTS in self.cluster.api.withheld else SANDBOX_VERBS
        token = self.cluster.grant(self.keys_namespace, ACCOUNT, rules(dict(GATEWAY_VERBS)))
        name = f"{self.keys_namespace}-{ACCOUNT}"
        about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, "namespace": self.namespace}}
        here = {LEASES: VERBS[LEASES]} if self.namespace_per_tenant else VERBS
        if self.namespace_per_tenant:
            self.cluster.grant(
                self.keys_namespace, ACCOUNT, [*cluster_rules(), *rules(dict(sandboxes))], everywhere=True
            )
        self.cluster.apply(
            {**about, "kind": "Role", "rules": rules({**here, **sandboxes})},
            {
                **about,
                "kind": "RoleBinding",
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.keys_namespace}],
            },
        )
        return token

    def site(self, instance: str = "test", **more: object) -> Site:
        name = f"{self.namespace}-{instance}" if self.namespace_per_tenant else instance
        separate = self.namespace_per_tenant
        return Site(name, self.namespace, self.keys_namespace, namespace_per_tenant=separate, **more)  # type: ignore[arg-type]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of sandboxes: the one for all, and those of tenants."""
        made = self.cluster.objects(kinds.NAMESPACE) if self.namespace_per_tenant else []
        names = [one["metadata"]["name"] for one in made]
        return [self.namespace, *(name for name in names if name.startswith(f"airlock-{self.namespace}-"))]

    def engine(
        self,
        instance: str = "test",
        *,
        on_transition: OnTransition = ignored,
        inspection: Inspection | None = None,
        lifetime_s: float | None = None,
        allowances: Allowances = unlimited,
        site: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.time,
        mode: str = "auto",
    ) -> KubernetesEngine:
        return KubernetesEngine(
            self.site(instance, mode=mode, **(site or {})),
            KubernetesRequests(self.kubeconfig),
            inspection=inspection or NoWalls(),
            on_transition=on_transition,
            lifetime_s=lifetime_s,
            allowances=allowances,
            clock=clock,
        )

    def kill(self, sandbox_id: str) -> None:
        """Kill the daemon of a sandbox."""
        pods = [one for namespace in self.namespaces for one in self.cluster.objects(kinds.POD, namespace)]
        (where,) = (one["metadata"]["namespace"] for one in pods if one["metadata"]["name"] == sandbox_id)
        self.cluster.call(self.cluster.nodes.kill, where, sandbox_id, "main", "Error")

    def left(self) -> list[str]:
        """Return what there is of sandboxes and workspaces, as `KIND NAME`."""
        return [
            f"{'workspace' if kind == kinds.CLAIM else kind.kind} {made['metadata']['name']}"
            for kind in (kinds.SANDBOX, kinds.POD, kinds.CLAIM, kinds.LEASE)
            for namespace in self.namespaces
            for made in self.cluster.objects(kind, namespace)
        ]


@contextlib.contextmanager
def cluster_of_sandboxes(*, agent_sandbox: bool = False, lag_s: float = 0) -> Iterator[Cluster]:
    with running_cluster(IMAGES, agent_sandbox=agent_sandbox, lag_s=lag_s) as cluster:
        yield cluster


async def lose(engine: KubernetesEngine) -> None:
    """Have an engine lose its connections and watches, as a killed process does; its Leases stay as they are."""
    parts = engine._parts
    parts.attached.close()
    for pooled in engine.pool.unclaimed.values():
        pooled.close()
    engine.pool.unclaimed.clear()
    for mirror in (parts.pods, parts.leases):
        await mirror.close()
    await parts.requests.close()
    engine._closed = True
