"""Engines over the cluster for tests: its Pods run as processes, with the real daemon behind the real TLS relay."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sandbox.client.channel import Channel
from sandbox.engines.kubernetes.boot import Inspection
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import GATEWAY_VERBS, VERBS, KubernetesRequests, Resource
from sandbox.engines.kubernetes.manifests import Site
from sandbox.sandbox import SandboxSpec
from sandbox.transition import OnTransition, ignored
from sandbox.v1 import channel_pb2 as pb
from tests.kubernetes import images, kinds
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.containers import ContainerStart, Launch
from tests.kubernetes.store import copied

IMAGE = "airlock-sandbox"
RUNTIME_IMAGE = "airlock-runtime"
KEYS_NAMESPACE = "airlock"
ACCOUNT = "gateway"


def runtime(start: ContainerStart) -> Launch:
    """Run the relay, which serves its own network here, a carrier's daemon or a probe; nothing has to be copied."""
    if "sandbox.daemon" in start.command:
        return images.daemon(start)
    if start.spec["name"] in {"listener", "dialer"}:
        return images.python_code(start)
    if "sandbox.tls" not in start.command:
        return images.nothing(start)
    return images.python_module(replace(start, command=[*start.command, "--serve-own-network"]))


IMAGES = {IMAGE: images.daemon, RUNTIME_IMAGE: runtime}


class NoWalls(Inspection):
    """A process of this machine has no walls, and says of no build that it is the bundle's."""

    async def introduced(self, channel: Channel) -> pb.Posture:
        return (await channel.hello(timeout_s=5.0)).posture

    def refuse_weak(self, sandbox_id: str, posture: pb.Posture, spec: SandboxSpec) -> None: ...


def rules(verbs: Mapping[Resource, frozenset[str]]) -> list[dict[str, list[str]]]:
    return [
        {"apiGroups": [one.group], "resources": [one.plural], "verbs": sorted(verbs)} for one, verbs in verbs.items()
    ]


class ClusterSite:
    """Namespaces of one test in a cluster, and the gateway's account, which may do what the engine says it does."""

    def __init__(self, cluster: Cluster, directory: Path, namespace: str = "") -> None:
        self.cluster = cluster
        name = namespace or f"s{secrets.token_hex(4)}"
        self.namespace = cluster.namespace(name, {"pod-security.kubernetes.io/enforce": "baseline"})
        self.keys_namespace = cluster.namespace(f"{name}-gateway")
        cluster.grant(self.namespace, ACCOUNT, [])
        self.token = cluster.grant(self.keys_namespace, ACCOUNT, rules(GATEWAY_VERBS))
        self.grant(VERBS)
        self.kubeconfig = cluster.write_kubeconfig(directory / "kubeconfig", self.token)

    def grant(self, verbs: Mapping[Resource, frozenset[str]]) -> None:
        """Let the gateway's account do something with the namespace of sandboxes, and nothing else."""
        name = f"{self.keys_namespace}-{ACCOUNT}"
        about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, "namespace": self.namespace}}
        self.cluster.apply(
            {**about, "kind": "Role", "rules": rules(verbs)},
            {
                **about,
                "kind": "RoleBinding",
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.keys_namespace}],
            },
        )

    def terminate(self) -> None:
        """Have the namespace of sandboxes look as one that is being deleted."""
        namespace = copied(self.cluster.store.find(kinds.NAMESPACE, "", self.namespace) or {})
        namespace["status"]["phase"] = "Terminating"
        self.cluster.call(self.cluster.store.put, kinds.NAMESPACE, namespace)

    def site(self, instance: str = "test", **more: object) -> Site:
        return Site(instance, self.namespace, self.keys_namespace, **more)  # type: ignore[arg-type]

    def engine(
        self,
        instance: str = "test",
        *,
        on_transition: OnTransition = ignored,
        inspection: Inspection | None = None,
        lifetime_s: float | None = None,
    ) -> KubernetesEngine:
        return KubernetesEngine(
            self.site(instance),
            KubernetesRequests(self.kubeconfig),
            inspection=inspection or NoWalls(),
            on_transition=on_transition,
            lifetime_s=lifetime_s,
        )

    def left(self) -> list[str]:
        """Return what there is of sandboxes and workspaces, as `KIND NAME`."""
        return [
            f"{'workspace' if kind == kinds.CLAIM else kind.kind} {made['metadata']['name']}"
            for kind in (kinds.POD, kinds.CLAIM, kinds.LEASE)
            for made in self.cluster.objects(kind, self.namespace)
        ]


@contextlib.contextmanager
def cluster_of_sandboxes() -> Iterator[Cluster]:
    with running_cluster(IMAGES, agent_sandbox=False) as cluster:
        yield cluster


async def lose(engine: KubernetesEngine) -> None:
    """Have an engine lose its connections and watches, as a killed process does; its Leases stay as they are."""
    parts = engine._parts
    parts.attached.close()
    for mirror in (parts.pods, parts.leases):
        await mirror.close()
    await parts.requests.close()
    engine._closed = True
