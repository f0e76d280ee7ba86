"""A real gateway over the cluster for tests: calls, a gateway that is killed, and another one that goes on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.sandbox import digest
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes
from tests.gateway_process import Home, Served, airlock, make_home, served
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster

_UNWALLED = (sys.executable, "-m", "tests.kubernetes.unwalled")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes() as found:
        yield found


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path) -> ClusterSite:
    return ClusterSite(cluster, tmp_path)


@pytest.fixture
def home(place: ClusterSite, tmp_path: Path) -> Home:
    return home_at(place, tmp_path / "home")


def home_at(place: ClusterSite, directory: Path) -> Home:
    made = make_home(directory)
    kubernetes = {
        "namespace": place.namespace,
        "gateway_namespace": place.keys_namespace,
        "kubeconfig": str(place.kubeconfig),
        "allow_unlimited_pids": True,
        "namespace_per_tenant": place.namespace_per_tenant,
    }
    made.configure(sandbox={"engine": "kubernetes", "keep_workspaces": True, "kubernetes": kubernetes})
    return made


async def execute(home: Home, gateway: Served, command: str) -> dict[str, Any]:
    env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
    words = ("tool", "call", "execute", json.dumps({"command": command}), "--thread", "t1", "--json")
    answer = await asyncio.to_thread(airlock, *words, env=env)
    return dict(json.loads(answer.stdout))


async def test_a_gateway_that_is_killed_leaves_its_sandbox_to_the_next_one(home: Home, place: ClusterSite) -> None:
    with served(home, within=_UNWALLED) as first:
        said = await execute(home, first, 'echo kept > a; echo same > "$TMPDIR/b"; echo $((6 * 7))')
        assert (said["outcome"], said["content"]) == ("exited", "42\n")
        (before,) = place.cluster.objects(kinds.POD, place.namespace)
        (quota,) = place.cluster.objects(kinds.QUOTA, place.namespace)
        assert quota["spec"]["hard"]["pods"] == str(2 * 64), "twice sandbox.max_live, without a pool"
        first.kill()
    with served(home, within=_UNWALLED) as second:
        said = await execute(home, second, 'cat a "$TMPDIR/b"')
        assert said["content"] == "kept\nsame\n", "the same files, and the same sandbox"
        (after,) = place.cluster.objects(kinds.POD, place.namespace)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one.split()[0] for one in place.left()] == ["workspace", "Lease"], "it removes its sandboxes when it stops"


async def test_a_tenant_s_namespace_has_the_limits_of_its_policy(cluster: Cluster, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    place = ClusterSite(cluster, apart, namespace_per_tenant=True)
    home = home_at(place, tmp_path / "home")
    with served(home, within=_UNWALLED) as gateway:
        said = await execute(home, gateway, "echo $((6 * 7))")
        assert (said["outcome"], said["content"]) == ("exited", "42\n")
        (pod,) = [one for one in cluster.objects(kinds.POD) if one["metadata"]["namespace"].endswith(digest("default"))]
        namespace = pod["metadata"]["namespace"]
        (quota,) = cluster.objects(kinds.QUOTA, namespace)
        hard = quota["spec"]["hard"]
        assert (hard["pods"], hard["persistentvolumeclaims"]) == ("32", str(100_000 + 32)), "those of the defaults"
        assert hard["limits.memory"] == str(32 * (1024 + 192) * 1024 * 1024)
