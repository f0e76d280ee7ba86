"""The controller of agents.x-k8s.io in the cluster for tests, with the races that a gateway must bear."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, CustomObjectsApi

from tests.kubernetes import kinds
from tests.kubernetes.agent_sandbox import CLAIM_UID, POOL
from tests.kubernetes.calls import connected, refusal
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.containers import as_written
from tests.kubernetes.controllers import condition_of, controller_of, is_ready
from tests.kubernetes.kinds import Kind
from tests.kubernetes.schemas import check
from tests.kubernetes.store import Made

_IMAGES = {"tool:1": as_written}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(_IMAGES) as found:
        yield found
        for kind in (kinds.SANDBOX, kinds.SANDBOX_CLAIM, kinds.WARM_POOL, kinds.SANDBOX_TEMPLATE):
            for made in found.objects(kind):
                check(kind, made, made["metadata"]["name"])


class Objects:
    """The custom objects of a namespace."""

    def __init__(self, api: ApiClient, space: str) -> None:
        self._custom = CustomObjectsApi(api)
        self._space = space

    async def create(self, kind: Kind, name: str, spec: Any) -> Any:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
        return await self._custom.create_namespaced_custom_object(
            kind.group, kind.version, self._space, kind.plural, body
        )

    async def patch(self, kind: Kind, name: str, change: Any) -> Any:
        return await self._custom.patch_namespaced_custom_object(
            kind.group,
            kind.version,
            self._space,
            kind.plural,
            name,
            change,
            _content_type="application/merge-patch+json",
        )

    async def delete(self, kind: Kind, name: str) -> None:
        await self._custom.delete_namespaced_custom_object(kind.group, kind.version, self._space, kind.plural, name)


@pytest.fixture
def objects(api: ApiClient, space: str) -> Objects:
    return Objects(api, space)


def template(**more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "tool:1", "command": ["sleep", "60"]}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return {"podTemplate": {"metadata": {"labels": {"app": "sandbox"}}, "spec": pod}, **more}


def seen(cluster: Cluster, kind: Kind, space: str, name: str, wanted: Any = is_ready) -> Made:
    def found() -> Made | None:
        made = cluster.store.find(kind, space, name)
        return made if made is not None and wanted(made) else None

    made = cluster.wait(found)
    assert made is not None
    return made


async def pool_of(cluster: Cluster, objects: Objects, space: str, replicas: int = 2, **more: Any) -> list[Made]:
    """Create a pool "warm" and wait until it is ready."""
    await objects.create(kinds.SANDBOX_TEMPLATE, "base", template(**more))
    await objects.create(kinds.WARM_POOL, "warm", {"replicas": replicas, "sandboxTemplateRef": {"name": "base"}})
    seen(cluster, kinds.WARM_POOL, space, "warm", lambda made: made.get("status", {}).get("readyReplicas") == replicas)
    return cluster.objects(kinds.SANDBOX, space)


async def test_a_sandbox_is_a_pod_that_is_suspended_and_resumed_with_its_claim(
    cluster: Cluster, objects: Objects, space: str
) -> None:
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "workspace"}, "spec": storage}]
    await objects.create(kinds.SANDBOX, "s", template(volumeClaimTemplates=claims))
    made = seen(cluster, kinds.SANDBOX, space, "s")
    assert made["status"]["podIPs"][0].startswith("127.")
    assert made["status"]["nodeName"] == "node-1"
    claim = cluster.objects(kinds.CLAIM, space)[0]
    assert (claim["metadata"]["name"], claim["status"]["phase"]) == ("workspace-s", "Bound")

    await objects.patch(kinds.SANDBOX, "s", {"spec": {"operatingMode": "Suspended"}})
    made = seen(cluster, kinds.SANDBOX, space, "s", lambda made: condition_of(made, "Suspended")["status"] == "True")
    assert condition_of(made, "Ready")["reason"] == "SandboxSuspended"
    assert not cluster.objects(kinds.POD, space)
    assert "podIPs" not in made["status"]

    await objects.patch(kinds.SANDBOX, "s", {"spec": {"operatingMode": "Running"}})
    seen(cluster, kinds.SANDBOX, space, "s")
    after = [made for made in cluster.history(kinds.SANDBOX, space, "s") if made["spec"]["operatingMode"] == "Running"]
    resumed = [made for made in after if made["metadata"]["generation"] > 1 and not is_ready(made)]
    assert {condition_of(made, "Suspended")["status"] for made in resumed} == {"True"}
    assert cluster.objects(kinds.CLAIM, space)[0]["metadata"]["uid"] == claim["metadata"]["uid"]


async def test_a_sandbox_whose_pod_is_not_admitted_says_why(cluster: Cluster, objects: Objects, space: str) -> None:
    full = {"metadata": {"name": "q", "namespace": space}, "spec": {"hard": {"pods": "0"}}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", **full})
    await objects.create(kinds.SANDBOX, "s", template())
    made = seen(cluster, kinds.SANDBOX, space, "s", lambda made: condition_of(made, "Ready"))
    assert condition_of(made, "Ready")["reason"] == "ReconcilerError"
    assert "exceeded quota" in condition_of(made, "Ready")["message"]


async def test_a_claim_has_a_warm_sandbox_and_the_pool_is_filled_again(
    cluster: Cluster, objects: Objects, space: str
) -> None:
    warm = {made["metadata"]["name"] for made in await pool_of(cluster, objects, space)}
    assert len(warm) == 2
    made = await objects.create(kinds.SANDBOX_CLAIM, "c", {"warmPoolRef": {"name": "warm"}})
    claimed = seen(cluster, kinds.SANDBOX_CLAIM, space, "c")
    name = claimed["status"]["sandbox"]["name"]
    assert name in warm
    sandbox = cluster.call(cluster.store.find, kinds.SANDBOX, space, name)
    assert sandbox is not None
    assert (controller_of(sandbox) or {})["uid"] == made["metadata"]["uid"]
    assert POOL not in sandbox["metadata"]["labels"]
    assert sandbox["metadata"]["labels"][CLAIM_UID] == made["metadata"]["uid"]
    seen(cluster, kinds.POD, space, name, lambda pod: POOL not in pod["metadata"]["labels"])
    cluster.wait(lambda: len(cluster.store.all(kinds.SANDBOX, space)) == 3)
    await objects.delete(kinds.SANDBOX_CLAIM, "c")
    cluster.wait(lambda: cluster.store.find(kinds.POD, space, name) is None)
    assert len(cluster.objects(kinds.SANDBOX, space)) == 2


async def test_a_claim_with_variables_is_new_if_the_template_allows(
    cluster: Cluster, objects: Objects, space: str
) -> None:
    await pool_of(cluster, objects, space, 1)
    spec = {"warmPoolRef": {"name": "warm"}, "env": [{"name": "A", "value": "b"}]}
    await objects.create(kinds.SANDBOX_CLAIM, "c", spec)
    made = seen(cluster, kinds.SANDBOX_CLAIM, space, "c", lambda made: condition_of(made, "Ready"))
    assert condition_of(made, "Ready")["reason"] == "EnvVarsInjectionRejected"
    await objects.patch(kinds.SANDBOX_TEMPLATE, "base", {"spec": {"envVarsInjectionPolicy": "Allowed"}})
    made = seen(cluster, kinds.SANDBOX_CLAIM, space, "c")
    assert made["status"]["sandbox"]["name"] == "c"


async def test_a_claim_of_no_pool_waits(cluster: Cluster, objects: Objects, space: str) -> None:
    await objects.create(kinds.SANDBOX_CLAIM, "c", {"warmPoolRef": {"name": "none"}})
    made = seen(cluster, kinds.SANDBOX_CLAIM, space, "c", lambda made: condition_of(made, "Ready"))
    assert condition_of(made, "Ready")["reason"] == "WarmPoolNotFound"


async def test_a_template_has_a_policy_that_keeps_all_but_the_router_out(
    cluster: Cluster, objects: Objects, space: str
) -> None:
    await objects.create(kinds.SANDBOX_TEMPLATE, "base", template())
    policy = seen(cluster, kinds.NETWORK_POLICY, space, "base-network-policy", lambda _: True)
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "10.0.0.0/8" in policy["spec"]["egress"][0]["to"][0]["ipBlock"]["except"]
    await objects.patch(kinds.SANDBOX_TEMPLATE, "base", {"spec": {"networkPolicyManagement": "Unmanaged"}})
    cluster.wait(lambda: not cluster.store.all(kinds.NETWORK_POLICY, space))


async def test_a_controller_with_a_stale_cache_makes_too_many_and_gives_none_twice() -> None:
    with running_cluster(_IMAGES, lag_s=0.3) as cluster:
        space = cluster.namespace("stale")
        async with connected(cluster) as api:
            objects = Objects(api, space)
            await objects.create(kinds.SANDBOX_TEMPLATE, "base", template())
            await objects.create(kinds.WARM_POOL, "warm", {"replicas": 2, "sandboxTemplateRef": {"name": "base"}})
            await asyncio.sleep(0.1)
            await objects.patch(kinds.WARM_POOL, "warm", {"metadata": {"annotations": {"touched": "soon"}}})
            cluster.wait(lambda: len(cluster.store.all(kinds.SANDBOX, space)) > 2)
            for number in range(2):
                await objects.create(kinds.SANDBOX_CLAIM, f"c{number}", {"warmPoolRef": {"name": "warm"}})
            names = {
                seen(cluster, kinds.SANDBOX_CLAIM, space, f"c{number}")["status"]["sandbox"]["name"]
                for number in range(2)
            }
            assert len(names) == 2


async def test_a_cluster_without_the_controller_does_not_know_its_kinds() -> None:
    with running_cluster(agent_sandbox=False) as cluster:
        async with connected(cluster) as api:
            call = CustomObjectsApi(api).list_namespaced_custom_object(kinds.AGENTS, "v1beta1", "default", "sandboxes")
            assert (await refusal(call))["code"] == 404
        assert not any(kinds.AGENTS in made["metadata"]["name"] for made in cluster.objects(kinds.DEFINITION))
