"""Engines over the cluster for tests: its Pods run as processes, with the real daemon behind the real TLS relay.

With AIRLOCK_TEST_KUBECONFIG they are over a real cluster (tests/kubernetes/real_cluster.py), whose Pods are sandboxes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

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
from tests.gateway_process import Home
from tests.integration.sandbox.live_engine import IMAGE
from tests.kubernetes import images, kinds
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.containers import ContainerStart, Launch
from tests.kubernetes.real_cluster import kubeconfig_of_real_cluster, real_cluster
from tests.kubernetes.store import copied

RUNTIME_IMAGE = os.environ.get("AIRLOCK_TEST_RUNTIME_IMAGE", "airlock-runtime")
KEYS_NAMESPACE = "airlock"
ACCOUNT = "gateway"
_ENDS_S = 20.0


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
        self.sandboxes = SANDBOX_VERBS if cluster.agent_sandbox else {}
        self.mode = "agent-sandbox" if cluster.agent_sandbox else "pods"
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
        here = {LEASES: VERBS[LEASES]} if self.namespace_per_tenant else verbs
        if self.namespace_per_tenant:
            everywhere = [*cluster_rules(), *rules(self.sandboxes)]
            self.cluster.grant(self.keys_namespace, ACCOUNT, everywhere, everywhere=True)
        self.cluster.apply(
            {**about, "kind": "Role", "rules": rules({**here, **self.sandboxes})},
            {
                **about,
                "kind": "RoleBinding",
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.keys_namespace}],
            },
        )

    def terminate(self) -> None:
        """Have the namespace of sandboxes look as one that is being deleted."""
        if self.cluster.real:
            pytest.skip("not on a real cluster: it would be gone before it is looked at")
        namespace = copied(self.cluster.store.find(kinds.NAMESPACE, "", self.namespace) or {})
        namespace["status"]["phase"] = "Terminating"
        self.cluster.call(self.cluster.store.put, kinds.NAMESPACE, namespace)

    def site(self, instance: str = "test", **more: object) -> Site:
        name = f"{self.namespace}-{instance}" if self.namespace_per_tenant else instance
        options: dict[str, Any] = {"runtime_image": RUNTIME_IMAGE, **self.cluster.site_options, **more}
        options["namespace_per_tenant"] = self.namespace_per_tenant
        return Site(name, self.namespace, self.keys_namespace, **options)

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of sandboxes: the one for all, and those of tenants."""
        made = self.cluster.objects(kinds.NAMESPACE) if self.namespace_per_tenant else []
        names = [one["metadata"]["name"] for one in made]
        return [self.namespace, *(name for name in names if name.startswith(f"airlock-{self.namespace}-"))]

    def serve_in(self, home: Home, **more: object) -> None:
        """Have a gateway use this place."""
        kubernetes = {
            "namespace": self.namespace,
            "gateway_namespace": self.keys_namespace,
            "mode": self.mode,
            "kubeconfig": str(self.kubeconfig),
            "allow_unlimited_pids": not self.cluster.pids_limited,
            "namespace_per_tenant": self.namespace_per_tenant,
            **self.cluster.site_options,
            **more,
        }
        settings = {"engine": "kubernetes", "keep_workspaces": True, "runtime_image": RUNTIME_IMAGE}
        home.configure(sandbox={**settings, "kubernetes": kubernetes})
        policy = home.config.parent / "policies" / "default.yaml"
        policy.write_text(policy.read_text().replace("image: airlock-sandbox", f"image: {IMAGE}"))

    @property
    def within(self) -> tuple[str, ...]:
        """The command that a gateway runs in: one whose sandboxes are processes cannot ask for walls."""
        return () if self.cluster.walled else (sys.executable, "-m", "tests.kubernetes.unwalled")

    def inspection(self) -> Inspection:
        """Return what is asked of a sandbox before it is used."""
        return Inspection(not self.cluster.pids_limited) if self.cluster.walled else NoWalls()

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
        mode: str = "",
    ) -> KubernetesEngine:
        return KubernetesEngine(
            self.site(instance, mode=mode or self.mode, **(site or {})),
            KubernetesRequests(self.kubeconfig),
            inspection=inspection or self.inspection(),
            on_transition=on_transition,
            lifetime_s=lifetime_s,
            allowances=allowances,
            clock=clock,
        )

    def kill(self, sandbox_id: str) -> None:
        """Kill the daemon of a sandbox."""
        pods = [one for namespace in self.namespaces for one in self.cluster.objects(kinds.POD, namespace)]
        (where,) = (one["metadata"]["namespace"] for one in pods if one["metadata"]["name"] == sandbox_id)
        self.cluster.kill_pod(where, sandbox_id)

    def left(self) -> list[str]:
        """Return what there is of sandboxes and workspaces, as `KIND NAME`, once what is ending has ended."""
        deadline_s = time.monotonic() + _ENDS_S
        sandboxes = (kinds.SANDBOX,) if self.cluster.agent_sandbox else ()
        while True:
            found = [
                (kind, made)
                for kind in (*sandboxes, kinds.POD, kinds.CLAIM, kinds.LEASE)
                for namespace in self.namespaces
                for made in self.cluster.objects(kind, namespace)
            ]
            ending = any("deletionTimestamp" in made["metadata"] for _, made in found)
            if not ending or time.monotonic() > deadline_s:
                return [
                    f"{'workspace' if kind == kinds.CLAIM else kind.kind} {made['metadata']['name']}"
                    for kind, made in found
                ]
            time.sleep(0.05)


@contextlib.contextmanager
def cluster_of_sandboxes(*, agent_sandbox: bool = False, lag_s: float = 0) -> Iterator[Cluster]:
    if kubeconfig_of_real_cluster() is not None:
        real = real_cluster()
        if agent_sandbox and not real.serves(kinds.SANDBOX):
            pytest.skip("the real cluster has no agent-sandbox: install it there")
        real.agent_sandbox = agent_sandbox
        yield cast(Cluster, real)
        return
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
