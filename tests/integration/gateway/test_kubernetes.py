"""A real gateway over the cluster for tests: calls, a gateway that is killed, and another one that goes on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.engines.kubernetes.resources import GATEWAY_VERBS, PODS, REMOVAL_VERBS, SECRETS, VERBS
from sandbox.sandbox import digest
from tests.conformance.kubernetes_engines import ACCOUNT, ClusterSite, cluster_of_sandboxes, cluster_rules, rules
from tests.gateway_process import Home, Served, airlock, make_home, served
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster, storage_class


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
    place.serve_in(made)
    return made


async def execute(home: Home, gateway: Served, command: str) -> dict[str, Any]:
    env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
    words = ("tool", "call", "execute", json.dumps({"command": command}), "--thread", "t1", "--json")
    answer = await asyncio.to_thread(airlock, *words, env=env)
    return dict(json.loads(answer.stdout))


async def test_a_gateway_that_is_killed_leaves_its_sandbox_to_the_next_one(home: Home, place: ClusterSite) -> None:
    with served(home, within=place.within) as first:
        said = await execute(home, first, 'echo kept > a; echo same > "$TMPDIR/b"; echo $((6 * 7))')
        assert (said["outcome"], said["content"]) == ("exited", "42\n")
        (before,) = place.cluster.objects(kinds.POD, place.namespace)
        (quota,) = place.cluster.objects(kinds.QUOTA, place.namespace)
        assert quota["spec"]["hard"]["pods"] == str(2 * 64), "twice sandbox.max_live, without a pool"
        first.kill()
    with served(home, within=place.within) as second:
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
    with served(home, within=place.within) as gateway:
        said = await execute(home, gateway, "echo $((6 * 7))")
        assert (said["outcome"], said["content"]) == ("exited", "42\n")
        (pod,) = [one for one in cluster.objects(kinds.POD) if one["metadata"]["namespace"].endswith(digest("default"))]
        namespace = pod["metadata"]["namespace"]
        (quota,) = cluster.objects(kinds.QUOTA, namespace)
        hard = quota["spec"]["hard"]
        assert (hard["pods"], hard["persistentvolumeclaims"]) == ("32", str(100_000 + 32)), "those of the defaults"
        assert hard["limits.memory"] == str(32 * (1024 + 192) * 1024 * 1024)


async def test_a_call_for_which_the_namespace_has_no_room_says_so_and_a_later_one_works(
    home: Home, place: ClusterSite
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": place.namespace}}
    with served(home, within=place.within) as gateway:
        place.cluster.apply({**quota, "spec": {"hard": {"pods": "0"}}})
        said = await execute(home, gateway, "echo 1")
        assert said["outcome"] == "failed_to_start"
        assert "raise its ResourceQuota" in json.dumps(said), said
        assert place.left() == []
        place.cluster.apply({**quota, "spec": {"hard": {"pods": "10"}}})
        assert (await execute(home, gateway, "echo 1"))["content"] == "1\n"


# --- commands of an operator ---


async def test_uninstall_removes_all_that_the_gateways_of_a_database_have_on_the_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    place = ClusterSite(cluster, tmp_path, namespace_per_tenant=True)
    home = home_at(place, tmp_path / "home")
    others = tenants_namespaces(cluster)
    uninstall = ("uninstall", "--config", str(home.config), "--yes", "--json")
    with served(home, within=place.within) as gateway:
        await execute(home, gateway, "echo kept > a")
        refused = json.loads(airlock(*uninstall, check=False).stdout)
        assert "running" in refused["error"]
    (claim,) = [
        one for namespace in tenants_namespaces(cluster) - others for one in cluster.objects(kinds.CLAIM, namespace)
    ]
    refused = json.loads(airlock(*uninstall, check=False).stdout)
    assert "grant list on volumesnapshots" in refused["error"], (
        "an operator's command, and this is the gateway's account"
    )
    assert (home.config.parent / "state").exists()

    cluster.grant(place.keys_namespace, ACCOUNT, [*cluster_rules(), *rules(REMOVAL_VERBS)], everywhere=True)
    granted = {**GATEWAY_VERBS, SECRETS: GATEWAY_VERBS[SECRETS] | REMOVAL_VERBS[SECRETS]}
    cluster.grant(place.keys_namespace, ACCOUNT, rules(granted))
    removed = json.loads(airlock(*uninstall).stdout)
    assert f"persistentvolumeclaims {claim['metadata']['namespace']}/{claim['metadata']['name']}" in removed["objects"]
    assert removed["state_dir"] is not None
    assert tenants_namespaces(cluster) == others
    assert place.left() == []
    assert cluster.objects(kinds.SECRET, place.keys_namespace) == []


def tenants_namespaces(cluster: Cluster) -> set[str]:
    """Return the namespaces that gateways have made for their tenants."""
    names = {one["metadata"]["name"] for one in cluster.objects(kinds.NAMESPACE)}
    return {name for name in names if name.endswith(digest("default"))}


async def test_threads_of_a_lost_engine_are_adopted_by_a_cluster(home: Home, place: ClusterSite) -> None:
    with served(home, within=place.within) as gateway:
        await execute(home, gateway, "echo kept > a")
    adopt = ("thread", "adopt", "--config", str(home.config), "--yes", "--json")
    refused = json.loads(airlock(*adopt, "engine-that-is-lost", check=False).stdout)["error"]
    own = refused.split("engines with threads: ")[1].split(" ")[0]
    assert own.startswith("kubernetes-")
    assert "already here" in json.loads(airlock(*adopt, own, check=False).stdout)["error"]
    other = cluster_secret(place, {"engine": "kubernetes-0123456789abcdef"})
    assert json.loads(airlock(*adopt, own).stdout) == {"from": own, "to": other, "threads": {"default": 1}}


def cluster_secret(place: ClusterSite, change: dict[str, str]) -> str:
    """Have the instance's Secret be that of another engine, as where it was lost; return the engine's id."""
    (secret,) = place.cluster.objects(kinds.SECRET, place.keys_namespace)
    data = {**secret["data"], **{name: base64.b64encode(text.encode()).decode() for name, text in change.items()}}
    place.cluster.apply({**secret, "data": data})
    return change["engine"]


# --- a start that is refused ---


def _unreachable(place: ClusterSite) -> None:
    kubeconfig = json.loads(place.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    place.kubeconfig.write_text(json.dumps(kubeconfig))


def _expired(place: ClusterSite) -> None:
    place.cluster.call(place.cluster.access.expire, place.token)


def _without_verbs(place: ClusterSite) -> None:
    place.grant({**VERBS, PODS: VERBS[PODS] - {"create", "watch"}})


def _terminating(place: ClusterSite) -> None:
    place.terminate()


def _without_class(place: ClusterSite) -> None:
    place.cluster.call(place.cluster.store.remove, kinds.STORAGE_CLASS, "", "standard")


@pytest.mark.parametrize(
    "disturb, message",
    [
        pytest.param(_unreachable, "at https://127.0.0.1:9 does not answer", id="no-cluster", marks=pytest.mark.full),
        pytest.param(
            _expired, "the token has expired or was revoked. Log in again", id="token", marks=pytest.mark.full
        ),
        pytest.param(_without_verbs, "lacks permissions: grant create, watch on pods in namespace", id="verb"),
        pytest.param(_terminating, "is being deleted: wait until it is gone", id="namespace", marks=pytest.mark.full),
        pytest.param(_without_class, "has no default StorageClass", id="class", marks=pytest.mark.full),
    ],
)
def test_a_cluster_that_cannot_have_sandboxes_is_refused_at_the_start_with_what_to_do(
    home: Home, place: ClusterSite, disturb: Callable[[ClusterSite], None], message: str
) -> None:
    disturb(place)
    try:
        with pytest.raises(RuntimeError, match="did not start") as refused, served(home, within=place.within):
            pass
    finally:
        if disturb is _without_class and not place.cluster.real:
            place.cluster.apply(storage_class("standard"))
    (line,) = [line for line in str(refused.value).splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in str(refused.value)
    assert place.left() == []
