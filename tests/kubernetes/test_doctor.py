"""`airlock doctor` on a cluster: each thing that can be wrong, what to do about it, and that nothing is left."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from gateway.cli.database import local_database
from gateway.cli.doctor_checks import Checks
from gateway.cli.doctor_cluster import ClusterChecks
from gateway.cli.finding import Finding
from gateway.cli.terminal import SlowWork
from gateway.composition.kubernetes import requests_of, site_of
from gateway.config.config import Config
from gateway.serving.directory_locks import INSTANCE
from gateway.storage.database import agreed
from gateway.tenancy.tenants import load_tenants
from sandbox.engines.kubernetes.boot import Inspection
from sandbox.engines.kubernetes.network_probe import SETTLE_S
from sandbox.engines.kubernetes.recorded_mode import uses_sandboxes
from sandbox.engines.kubernetes.resources import GATEWAY_VERBS, LEASES, PODS, SNAPSHOT_VERBS, VERBS
from sandbox.engines.kubernetes.trial import OWNER
from tests.conformance.kubernetes_engines import (
    ACCOUNT,
    IMAGE,
    RUNTIME_IMAGE,
    ClusterSite,
    NoWalls,
    cluster_of_sandboxes,
    runtime,
)
from tests.gateway_process import Home, airlock, make_home
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster, storage_class
from tests.kubernetes.network_policies import enforcing


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes() as found:
        if not found.real:
            found.images[RUNTIME_IMAGE] = enforcing(found, runtime)
        yield found


@pytest.fixture(scope="module")
def first_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("home") / "home")


@pytest.fixture
def home(first_home: Home, tmp_path: Path) -> Home:
    shutil.copytree(first_home.config.parent, tmp_path / "home")
    return replace(first_home, config=tmp_path / "home" / first_home.config.name)


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    if not cluster.walled:
        monkeypatch.setattr(Inspection, "introduced", NoWalls.introduced)
        monkeypatch.setattr(Inspection, "refuse_weak", NoWalls.refuse_weak)
    return ClusterSite(cluster, tmp_path)


async def checked(home: Home, place: ClusterSite, **more: object) -> Mapping[str, Finding]:
    """Return the findings of a look at the cluster, of which nothing is left."""
    place.serve_in(home, **more)
    config = Config.load(home.config)
    checks = ClusterChecks(
        config, load_tenants(config), SlowWork("checking"), settle_s=SETTLE_S if place.cluster.real else 0.2
    )
    found = {one.what: one for one in await checks.run()}
    assert left(place) == []
    if place.cluster.real:
        found.pop("network of the node", None)  # what its plugin leaves open is nothing of ours
    return found


def left(place: ClusterSite) -> list[str]:
    """Return what is left in the namespace, where no gateway has ever been, once the cluster has collected it."""
    deadline_s = time.monotonic() + 30
    while any(place.cluster.objects(kind, place.namespace) for kind in (kinds.SECRET, kinds.NETWORK_POLICY)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return place.left()


def bad(found: Mapping[str, Finding]) -> dict[str, str]:
    """Return what is wrong besides that Pods of this cluster are processes of this machine, which nothing confines."""
    unconfined = {"sandbox", "sandbox: processes", "sandbox: landlock"}
    return {what: one.state for what, one in found.items() if one.state != "ok" and what not in unconfined}


async def test_a_cluster_that_has_all_passes_every_check(home: Home, place: ClusterSite) -> None:
    found = await checked(home, place)
    assert bad(found) == {}
    assert found["cluster"].detail == f"Kubernetes v1.36.0 at {place.cluster.url}"
    assert found["permissions"].detail == f"{sum(map(len, (*VERBS.values(), *GATEWAY_VERBS.values())))} granted"
    assert found["network policy"].detail == "enforced both ways"
    assert found[f"image {RUNTIME_IMAGE}"].detail == found[f"image {IMAGE}"].detail == "is there, or was pulled"
    if not place.cluster.real:
        assert found["network of the node"].detail == "no kubelet, metadata service or DNS answers"
    if place.cluster.walled:
        assert found["sandbox"].state == "ok"
        return
    # Processes of this machine are not confined: the command ran, and as root.
    assert found["sandbox"].detail == "a trial command ended with exited: 0"
    processes = found["sandbox: processes"]
    assert (processes.state, "podPidsLimit to 512 or less" in processes.fix) == ("warning", True)


async def test_with_a_namespace_for_each_tenant_it_is_tried_out_in_namespaces_that_are_gone_afterwards(
    home: Home, place: ClusterSite, tmp_path: Path
) -> None:
    (tmp_path / "apart").mkdir()
    apart = ClusterSite(place.cluster, tmp_path / "apart", namespace_per_tenant=True)
    labels = {"airlock.dev/kind": "trial", "airlock.dev/instance": "trial-1"}
    metadata = {"name": "airlock-trial-1-trial", "namespace": apart.namespace, "labels": labels}
    killed = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    place.cluster.apply(killed)
    (lease,) = place.cluster.objects(kinds.LEASE, apart.namespace)
    old = {**lease, "metadata": {**lease["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}}
    place.cluster.call(place.cluster.store.put, kinds.LEASE, old)
    place.cluster.namespace(replace(apart.site(), instance="trial-1").namespace_of(OWNER))

    found = await checked(home, apart)
    assert bad(found) == {}
    assert found["network policy"].detail == "enforced both ways"
    assert found["runtime runc"].state == "ok"
    if not place.cluster.walled:
        assert found["sandbox"].detail == "a trial command ended with exited: 0"
    place.cluster.wait(lambda: not [name for name in namespaces(place) if name.startswith("airlock-trial-")])


def namespaces(place: ClusterSite) -> list[str]:
    return [made["metadata"]["name"] for made in place.cluster.store.all(kinds.NAMESPACE, "")]


async def test_a_limit_of_processes_is_asked_for_unless_the_configuration_waives_it(
    home: Home, place: ClusterSite
) -> None:
    if place.cluster.walled:
        pytest.skip("not on a real cluster: its kubelets limit processes as they do")
    processes = (await checked(home, place, allow_unlimited_pids=False))["sandbox: processes"]
    assert (processes.state, "allow_unlimited_pids: true" in processes.fix) == ("failed", True)


async def test_a_network_that_enforces_no_policy_is_found_out(
    home: Home, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(place.cluster.images, RUNTIME_IMAGE, runtime)
    found = await checked(home, place)
    assert bad(found) == {"network policy": "failed"}
    policy = found["network policy"]
    for way in ("reaches another Pod", "reaches the API", "any Pod reaches a sandbox's relay"):
        assert way in policy.detail
    assert "enforces NetworkPolicies" in policy.fix


@pytest.mark.parametrize(
    "exempt, state, named, fix",
    [
        ([("127.0.0.1", 10250)], "warning", "a sandbox reaches its node's kubelet", "defaultEndpointToHostAction"),
        ([("169.254.169.254", 80)], "failed", "a sandbox reaches the metadata service of a cloud", "hop limit"),
        (
            [("127.0.0.1", 10250), ("169.254.20.10", 53)],
            "failed",
            "a sandbox reaches its node's kubelet, its node's DNS cache",
            "the nodes' packet filter",
        ),
    ],
    ids=["kubelet", "metadata", "dns-cache"],
)
async def test_what_a_plugin_exempts_from_policies_is_named_with_what_closes_it(
    home: Home,
    place: ClusterSite,
    monkeypatch: pytest.MonkeyPatch,
    *,
    exempt: list[tuple[str, int]],
    state: str,
    named: str,
    fix: str,
) -> None:
    if place.cluster.real:
        pytest.skip("not on a real cluster: its plugin exempts what it does")
    monkeypatch.setitem(place.cluster.images, RUNTIME_IMAGE, enforcing(place.cluster, runtime, exempt=exempt))
    found = await checked(home, place)
    assert bad(found) == {"network of the node": state}
    node = found["network of the node"]
    assert (node.detail, fix in node.fix) == (named, True)


# --- what keeps a sandbox from being made ---


async def test_without_an_api_that_answers_nothing_else_is_checked(home: Home, place: ClusterSite) -> None:
    kubeconfig = json.loads(place.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    place.kubeconfig.write_text(json.dumps(kubeconfig))
    found = await checked(home, place)
    assert bad(found) == {"cluster": "failed"}
    assert "at https://127.0.0.1:9 does not answer" in found["cluster"].fix


async def test_an_api_with_another_certificate_is_not_trusted(home: Home, place: ClusterSite) -> None:
    kubeconfig = json.loads(place.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"].pop("certificate-authority", None)
    other = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = other
    place.kubeconfig.write_text(json.dumps(kubeconfig))
    found = await checked(home, place)
    assert bad(found) == {"cluster": "failed"}
    assert "correct the certificate-authority" in found["cluster"].fix


async def test_a_token_that_has_expired_is_named(home: Home, place: ClusterSite) -> None:
    place.cluster.call(place.cluster.access.expire, place.token)
    found = await checked(home, place)
    assert bad(found) == {"cluster": "failed"}
    assert "the token has expired" in found["cluster"].fix


async def test_each_permission_that_is_missing_is_named(home: Home, place: ClusterSite) -> None:
    place.grant({**VERBS, PODS: VERBS[PODS] - {"create", "watch"}, LEASES: frozenset()})
    found = await checked(home, place)
    assert found["permissions"].state == "failed"
    for text in (f"create, watch on pods in namespace '{place.namespace}'", "update, watch on leases"):
        assert text in found["permissions"].fix


async def test_a_namespace_that_is_not_there_or_being_deleted_is_named(home: Home, place: ClusterSite) -> None:
    found = await checked(home, place, namespace=f"{place.namespace}-2")
    assert "lacks a permission" in found[f"namespace {place.namespace}-2"].fix
    place.terminate()
    found = await checked(home, place)
    assert "is being deleted" in found[f"namespace {place.namespace}"].fix


async def test_a_cluster_without_a_class_for_volumes_needs_one(home: Home, place: ClusterSite) -> None:
    place.cluster.call(place.cluster.store.remove, kinds.STORAGE_CLASS, "", "standard")
    try:
        found = await checked(home, place)
    finally:
        place.cluster.apply(storage_class("standard"))
    assert bad(found) == {"storage class": "failed"}
    assert "name one in sandbox.kubernetes.storage_class" in found["storage class"].fix


async def test_a_class_that_is_not_there_or_whose_volumes_are_made_by_hand_is_said_to_be_so(
    home: Home, place: ClusterSite
) -> None:
    reads = {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]}
    place.cluster.grant(place.keys_namespace, ACCOUNT, [reads], everywhere=True)
    by_hand = {**storage_class("by-hand", default=False), "provisioner": "kubernetes.io/no-provisioner"}
    place.cluster.apply(by_hand)
    found = (await checked(home, place, storage_class="by-hand"))["storage class"]
    assert (found.state, "a free PersistentVolume of class by-hand" in found.fix) == ("warning", True)
    found = (await checked(home, place, storage_class="nowhere"))["storage class"]
    assert (found.state, "create StorageClass nowhere" in found.fix) == ("warning", True)
    if not place.cluster.real:
        assert (await checked(home, place))["storage class"].detail == "standard, the default, by directories.test"


async def test_a_class_of_snapshots_is_looked_at_where_one_is_configured(home: Home, place: ClusterSite) -> None:
    if place.cluster.real:
        pytest.skip("it needs a driver that takes snapshots")
    found = await checked(home, place, snapshot_class="standard")
    assert "create, delete, get, list on volumesnapshots" in found["permissions"].fix
    place.snapshots = SNAPSHOT_VERBS
    place.grant(VERBS)
    found = await checked(home, place, snapshot_class="standard")
    assert found["snapshot class"].detail == "served; the account may not read the class"
    groups = {"storage.k8s.io": "storageclasses", "snapshot.storage.k8s.io": "volumesnapshotclasses"}
    reads = [{"apiGroups": [group], "resources": [plural], "verbs": ["get"]} for group, plural in groups.items()]
    place.cluster.grant(place.keys_namespace, ACCOUNT, reads, everywhere=True)
    assert (await checked(home, place, snapshot_class="standard"))[
        "snapshot class"
    ].detail == "standard, by directories.test"
    about = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "deletionPolicy": "Delete"}
    place.cluster.apply({**about, "metadata": {"name": "other"}, "driver": "other.test"})
    found = await checked(home, place, snapshot_class="other")
    assert (found["snapshot class"].state, "of driver directories.test" in found["snapshot class"].fix) == (
        "failed",
        True,
    )
    found = await checked(home, place, snapshot_class="nowhere")
    assert "'nowhere' does not exist" in found["snapshot class"].fix


async def test_a_full_quota_and_a_level_that_forbids_the_daemon_are_named(home: Home, place: ClusterSite) -> None:
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": place.namespace}}
    place.cluster.apply({**about, "spec": {"hard": {"pods": "0"}}})
    found = await checked(home, place)
    assert (found["quota"].state, "raise its ResourceQuota" in found["quota"].fix) == ("failed", True)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    place.cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace, "labels": labels}}
    )
    found = await checked(home, place)
    assert (found["pod security"].state, "enforce=baseline" in found["pod security"].fix) == ("failed", True)


async def test_a_runtime_that_a_policy_names_must_be_a_class_of_the_cluster(home: Home, place: ClusterSite) -> None:
    policy = (home.config.parent / "policies" / "default.yaml").read_text()
    home.add_tenant(
        "other",
        policy.replace("runtime: runc", "runtime: runsc").replace("enforcement: kernel", "enforcement: reading"),
    )
    found = await checked(home, place)
    if any(made["metadata"]["name"] == "gvisor" for made in place.cluster.objects(kinds.RUNTIME_CLASS)):
        assert {found[what].state for what in ("runtime runc", "runtime runsc", "sandbox runsc")} == {"ok"}
        return
    assert (found["runtime runc"].state, found["runtime runsc"].state) == ("ok", "failed")
    assert '"gvisor" not found' in found["runtime runsc"].fix


async def test_an_image_that_nodes_cannot_have_is_named(
    home: Home, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(place.cluster.images, IMAGE)
    found = await checked(home, place)
    assert (found["image airlock-runtime"].state, found["image airlock-sandbox"].state) == ("ok", "failed")
    assert "image_pull_secrets" in found["image airlock-sandbox"].fix
    assert "sandbox" not in found


async def test_agent_sandbox_of_another_version_is_named(home: Home, place: ClusterSite) -> None:
    place.cluster.api.outdated[kinds.AGENTS] = "v1alpha1"
    try:
        found = (await checked(home, place, mode="auto"))["agent-sandbox"]
    finally:
        place.cluster.api.outdated.clear()
    assert (found.state, found.detail) == ("failed", "the cluster does not serve what mode auto needs")
    assert "serves agents.x-k8s.io/v1alpha1 alone" in found.fix
    assert "install agent-sandbox 1.0 or later" in found.fix


async def test_it_checks_what_the_gateways_have_recorded_whatever_the_cluster_serves_since(
    home: Home, place: ClusterSite
) -> None:
    place.serve_in(home, mode="auto")
    config = Config.load(home.config)
    async with local_database(config, create=True) as database:
        instance = await agreed(database, INSTANCE, offered=f"gw_{'0' * 24}")
    requests = requests_of(config)
    try:
        assert not await uses_sandboxes(requests, site_of(config, instance))
    finally:
        await requests.close()
    place.grant({**VERBS, PODS: VERBS[PODS] - {"create"}})  # nothing is tried out
    checks = Checks(SlowWork("checking"), None)
    place.cluster.api.outdated[kinds.AGENTS] = "v1alpha1"
    try:
        await checks.run(home.config)
    finally:
        place.cluster.api.outdated.clear()
    (found,) = [one for one in checks.findings if one.what == "agent-sandbox"]
    assert (found.state, found.detail) == ("ok", "sandboxes are plain Pods")


# --- what is left ---


async def test_the_next_look_removes_what_one_that_was_killed_has_left(home: Home, place: ClusterSite) -> None:
    labels = {"airlock.dev/kind": "trial", "airlock.dev/instance": "trial-1"}
    metadata = {"name": "airlock-trial-1-trial", "namespace": place.namespace, "labels": labels}
    place.cluster.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}})
    (lease,) = place.cluster.objects(kinds.LEASE, place.namespace)
    owner = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": metadata["name"]}
    owned = {**metadata, "ownerReferences": [{**owner, "uid": lease["metadata"]["uid"]}]}
    place.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": owned})
    old = {**lease, "metadata": {**lease["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}}
    place.cluster.call(place.cluster.store.put, kinds.LEASE, old)
    await checked(home, place)


async def test_a_look_that_is_interrupted_leaves_nothing(home: Home, place: ClusterSite) -> None:
    await checked(home, place)  # for the configuration
    words = (*place.within, sys.executable, "-m", "gateway.cli", "doctor")
    looking = subprocess.Popen((*words, "--config", str(home.config), "--json"), stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(60):
            while not any("inside" in line for line in await asyncio.to_thread(place.left)):
                await asyncio.sleep(0.05)
        looking.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(looking.wait, 60) != 0
    finally:
        looking.kill()
        looking.communicate()
    assert left(place) == []


def test_the_command_shows_what_it_finds(home: Home, place: ClusterSite) -> None:
    place.cluster.call(place.cluster.access.expire, place.token)
    asyncio.run(checked(home, place))
    shown = airlock("doctor", "--config", str(home.config), "--json", check=False)
    assert shown.returncode == 1
    found = {one["what"]: one for one in json.loads(shown.stdout)["findings"]}
    assert (found["cluster"]["state"], found["configuration"]["state"]) == ("failed", "ok")
    assert "engine" not in found
