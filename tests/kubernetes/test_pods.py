"""Pods of the cluster for tests: processes that start, become ready, fail and end as those of a real node do."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, CoreV1Api, CustomObjectsApi

from sandbox.client.channel import Channel
from sandbox.client.unix_address import UnixAddress
from tests.kubernetes import images, kinds
from tests.kubernetes.calls import pod
from tests.kubernetes.cluster import Cluster, running_cluster, storage_class
from tests.kubernetes.containers import ContainerStart, Launch, as_written
from tests.kubernetes.schemas import check
from tests.kubernetes.store import Made

_SERVE = [sys.executable, "-m", "http.server", "--bind", "$(POD_IP)", "8000"]
_ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
_SNAPSHOTS = ("snapshot.storage.k8s.io", "v1")


def deaf(start: ContainerStart) -> Launch:
    """`sleep` as pid 1: SIGTERM has no effect."""
    return Launch(start.command, heeds_term=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    known = {"tool:1": as_written, "deaf:1": deaf, "daemon:1": images.daemon, "module:1": images.python_module}
    with running_cluster({**known, "runtime:1": images.nothing}) as found:
        yield found
        for made in found.objects(kinds.POD):
            check(kinds.POD, made, made["metadata"]["name"])


@pytest.fixture
def core(api: ApiClient) -> CoreV1Api:
    return CoreV1Api(api)


def contained(command: list[str], name: str = "main", image: str = "tool:1", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "command": command, **more}


def claim(name: str, **spec: Any) -> dict[str, Any]:
    whole = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": whole}


def seen(cluster: Cluster, space: str, name: str, wanted: Any) -> Made:
    """Wait for a Pod that is as wanted."""
    return cluster.wait(
        lambda: next((made for made in cluster.store.all(kinds.POD, space)
                      if made["metadata"]["name"] == name and wanted(made)), None)
    )  # fmt: skip


def condition(made: Made, kind: str) -> tuple[str, str]:
    found = next((item for item in made["status"].get("conditions", ()) if item["type"] == kind), {})
    return found.get("status", ""), found.get("reason", "")


def ready(made: Made) -> bool:
    return condition(made, "Ready")[0] == "True"


def state(made: Made) -> Made:
    return made["status"].get("containerStatuses", [{"state": {}}])[0]["state"]  # type: ignore[no-any-return]


def gone(cluster: Cluster, space: str, name: str) -> bool:
    return cluster.wait(lambda: cluster.store.find(kinds.POD, space, name) is None)


async def test_a_pod_is_ready_once_its_probe_passes_at_an_address_of_its_own(
    cluster: Cluster, core: CoreV1Api, space: str
) -> None:
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    for name in ("a", "b"):
        serving = contained(_SERVE, env=[_ADDRESS], readinessProbe=probe)
        await core.create_namespaced_pod(space, pod(name, containers=[serving]))
    both = [seen(cluster, space, name, ready) for name in ("a", "b")]
    addresses = {made["status"]["podIP"] for made in both}
    assert len(addresses) == 2
    assert all(address.startswith("127.") for address in addresses)
    assert both[0]["spec"]["nodeName"] == "node-1"
    assert both[0]["status"]["containerStatuses"][0]["started"] is True


async def test_init_containers_run_in_their_order_and_sidecars_beside(
    cluster: Cluster, core: CoreV1Api, space: str
) -> None:
    volume = {"name": "shared", "emptyDir": {}}
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    write = "import sys, os; os.chdir(os.environ['AT']); open(sys.argv[1], 'x').write(str(sorted(os.listdir('.'))))"

    def local(start: ContainerStart) -> Launch:
        return Launch(start.command, {"AT": str(start.path("/shared"))})

    cluster.images["local:1"] = local
    init = [
        contained([sys.executable, "-c", write, name], name, "local:1", volumeMounts=mounts) for name in ("one", "two")
    ]
    beside = contained(["sleep", "60"], "beside", restartPolicy="Always")
    main = contained(["sleep", "60"], volumeMounts=mounts)
    spec = {"initContainers": [init[0], beside, init[1]], "containers": [main], "volumes": [volume]}
    await core.create_namespaced_pod(space, pod(**spec))
    made = seen(cluster, space, "p", ready)
    place = next(cluster.directory.glob(f"pods/{made['metadata']['uid']}/volumes/shared/*"))
    assert (place / "two").read_text() == "['one', 'two']"
    assert [list(item["state"]) for item in made["status"]["initContainerStatuses"]] == [
        ["terminated"], ["running"], ["terminated"]
    ]  # fmt: skip


async def test_term_comes_first_and_kill_when_the_grace_is_over(cluster: Cluster, core: CoreV1Api, space: str) -> None:
    for name, image in (("heeds", "tool:1"), ("deaf", "deaf:1")):
        await core.create_namespaced_pod(space, pod(name, containers=[contained(["sleep", "60"], image=image)]))
        seen(cluster, space, name, ready)
    await core.delete_namespaced_pod("heeds", space)
    gone(cluster, space, "heeds")
    ending = await core.delete_namespaced_pod("deaf", space, grace_period_seconds=30)
    assert ending.metadata.deletion_grace_period_seconds == 30
    await core.delete_namespaced_pod("deaf", space, grace_period_seconds=1)
    gone(cluster, space, "deaf")


async def test_a_pod_that_is_forced_out_is_gone_at_once_with_its_processes(
    cluster: Cluster, core: CoreV1Api, space: str
) -> None:
    await core.create_namespaced_pod(space, pod(containers=[contained(["sleep", "61234"], image="deaf:1")]))
    seen(cluster, space, "p", ready)
    assert _runs("61234")
    await core.delete_namespaced_pod("p", space, grace_period_seconds=0)
    assert cluster.store.find(kinds.POD, space, "p") is None
    cluster.wait(lambda: cluster.store.put(kinds.CONFIG_MAP, _tick(space)) and not _runs("61234"))


def _runs(mark: str) -> bool:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"\0{mark}\0".encode() in place.read_bytes():
                return True
    return False


_ticks = iter(range(10**9))


def _tick(space: str) -> Made:
    return {"metadata": {"name": "tick", "namespace": space, "uid": "tick"}, "data": {"n": str(next(_ticks))}}


@pytest.mark.parametrize(
    "policy, code, phase", [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")]
)
async def test_a_pod_that_ends_by_itself(
    cluster: Cluster, core: CoreV1Api, space: str, policy: str, code: int, phase: str
) -> None:
    command = ["sh", "-c", f"echo last words; exit {code}"]
    await core.create_namespaced_pod(space, pod(restartPolicy=policy, containers=[contained(command)]))
    made = seen(cluster, space, "p", lambda made: made["status"]["phase"] == phase)
    assert state(made)["terminated"]["exitCode"] == code
    assert condition(made, "Ready") == ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed")
    assert await core.read_namespaced_pod_log("p", space) == "last words\n"


async def test_what_crashes_is_started_again_with_a_pause(cluster: Cluster, core: CoreV1Api, space: str) -> None:
    await core.create_namespaced_pod(space, pod(containers=[contained(["false"])]))
    made = seen(cluster, space, "p", lambda made: state(made).get("waiting", {}).get("reason") == "CrashLoopBackOff")
    status = made["status"]["containerStatuses"][0]
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["exitCode"] == 1


async def test_a_container_without_memory_is_oom_killed(cluster: Cluster, core: CoreV1Api, space: str) -> None:
    await core.create_namespaced_pod(space, pod(restartPolicy="Never", containers=[contained(["sleep", "60"])]))
    seen(cluster, space, "p", ready)
    cluster.call(cluster.nodes.kill, space, "p", "main")
    made = seen(cluster, space, "p", lambda made: made["status"]["phase"] == "Failed")
    assert state(made)["terminated"]["reason"] == "OOMKilled"
    assert state(made)["terminated"]["exitCode"] == 128 + signal.SIGKILL


async def test_an_image_that_cannot_be_pulled_is_waited_for(cluster: Cluster, core: CoreV1Api, space: str) -> None:
    await core.create_namespaced_pod(space, pod(containers=[contained(["sleep", "60"], image="late:1")]))
    seen(cluster, space, "p", lambda made: state(made).get("waiting", {}).get("reason") == "ImagePullBackOff")
    cluster.images["late:1"] = as_written
    seen(cluster, space, "p", ready)


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"nodeSelector": {"zone": "b"}},
         "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        ({"containers": [contained(["true"], resources={"limits": {"memory": "1Ti"}})]},
         "0/1 nodes are available: 1 Insufficient memory."),
        ({"volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "none"}}]},
         '0/1 nodes are available: persistentvolumeclaim "none" not found.'),
    ],
)  # fmt: skip
async def test_a_pod_that_no_node_takes_says_why(
    cluster: Cluster, core: CoreV1Api, space: str, spec: Any, message: str
) -> None:
    await core.create_namespaced_pod(space, pod(**spec))
    made = seen(cluster, space, "p", lambda made: condition(made, "PodScheduled") == ("False", "Unschedulable"))
    assert made["status"]["conditions"][0]["message"] == message
    assert (await core.list_namespaced_event(space)).items[0].reason == "FailedScheduling"


class TestNodes:
    """Each with a node of its own."""

    @pytest.fixture
    def node(self, cluster: Cluster, space: str) -> str:
        cluster.call(cluster.nodes.add, space, None, {"node": space})
        return space

    @pytest.fixture
    async def running(self, cluster: Cluster, core: CoreV1Api, space: str, node: str) -> str:
        spec = {"nodeSelector": {"node": node}, "containers": [contained(["sleep", "60"])]}
        await core.create_namespaced_pod(space, pod(**spec))
        seen(cluster, space, "p", ready)
        return "p"

    async def test_an_evicted_pod_failed_and_stays(self, cluster: Cluster, space: str, running: str) -> None:
        cluster.call(cluster.nodes.evict, space, running)
        made = seen(cluster, space, running, lambda made: made["status"]["phase"] == "Failed")
        assert made["status"]["reason"] == "Evicted"
        assert condition(made, "DisruptionTarget") == ("True", "TerminationByKubelet")

    async def test_a_drained_node_ends_its_pods_and_takes_none(
        self, cluster: Cluster, core: CoreV1Api, space: str, node: str, running: str
    ) -> None:
        cluster.call(cluster.nodes.drain, node)
        gone(cluster, space, running)
        await core.create_namespaced_pod(space, pod("q", nodeSelector={"node": node}))
        seen(cluster, space, "q", lambda made: condition(made, "PodScheduled") == ("False", "Unschedulable"))

    async def test_the_pods_of_a_lost_node_end_and_are_never_removed(
        self, cluster: Cluster, core: CoreV1Api, space: str, node: str, running: str
    ) -> None:
        cluster.call(cluster.nodes.lose, node)
        made = seen(cluster, space, running, lambda made: "deletionTimestamp" in made["metadata"])
        assert condition(made, "Ready") == ("False", "NodeNotReady")
        await core.delete_namespaced_pod(running, space, grace_period_seconds=0)
        gone(cluster, space, running)


async def test_a_secret_that_is_missing_is_waited_for_and_then_read(
    cluster: Cluster, core: CoreV1Api, space: str
) -> None:
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    key = {"secretKeyRef": {"name": "keys", "key": "key"}}
    command = contained(["sh", "-c", "echo $KEY; sleep 60"], volumeMounts=[{"name": "keys", "mountPath": "/keys"}],
                        env=[{"name": "KEY", "valueFrom": key}])  # fmt: skip
    await core.create_namespaced_pod(space, pod(containers=[command], volumes=[volume]))
    cluster.wait(lambda: [made for made in cluster.store.all(kinds.EVENT, space) if made["reason"] == "FailedMount"])
    await core.create_namespaced_secret(space, {"metadata": {"name": "keys"}, "stringData": {"key": "value"}})
    made = seen(cluster, space, "p", ready)
    place = next(cluster.directory.glob(f"pods/{made['metadata']['uid']}/volumes/keys/*/key"))
    assert place.read_text() == "value"


class TestVolumes:
    async def test_a_claim_waits_for_its_pod_and_outlives_it(
        self, cluster: Cluster, core: CoreV1Api, space: str
    ) -> None:
        await core.create_namespaced_persistent_volume_claim(space, claim("w"))
        assert cluster.store.find(kinds.CLAIM, space, "w")["status"]["phase"] == "Pending"  # type: ignore[index]
        volume = {"name": "w", "persistentVolumeClaim": {"claimName": "w"}}
        main = contained(["sleep", "60"], volumeMounts=[{"name": "w", "mountPath": "/workspace"}])
        await core.create_namespaced_pod(space, pod("a", volumes=[volume], containers=[main]))
        seen(cluster, space, "a", ready)
        bound = await core.read_namespaced_persistent_volume_claim("w", space)
        place = _place(cluster, bound.spec.volume_name)
        (place / "kept").write_text("kept")
        await core.delete_namespaced_pod("a", space)
        gone(cluster, space, "a")
        assert (place / "kept").read_text() == "kept"
        await core.delete_namespaced_persistent_volume_claim("w", space)
        cluster.wait(
            lambda: (
                not [
                    one for one in cluster.store.all(kinds.VOLUME) if one["metadata"]["name"] == bound.spec.volume_name
                ]
            )
        )
        assert not place.exists()

    async def test_a_snapshot_becomes_a_new_claim(
        self, cluster: Cluster, api: ApiClient, core: CoreV1Api, space: str
    ) -> None:
        cluster.apply(storage_class("at-once", default=False, binding="Immediate"))
        await core.create_namespaced_persistent_volume_claim(space, claim("w", storageClassName="at-once"))
        bound = cluster.wait(lambda: _bound(cluster, space, "w"))
        (_place(cluster, bound["spec"]["volumeName"]) / "file").write_text("then")
        source = {"source": {"persistentVolumeClaimName": "w"}, "volumeSnapshotClassName": "standard"}
        body = {"metadata": {"name": "s"}, "spec": source}
        await CustomObjectsApi(api).create_namespaced_custom_object(*_SNAPSHOTS, space, "volumesnapshots", body)
        cluster.wait(lambda: (cluster.store.find(kinds.SNAPSHOT, space, "s") or {}).get("status", {}).get("readyToUse"))
        (_place(cluster, bound["spec"]["volumeName"]) / "file").write_text("now")
        origin = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
        fork = claim("fork", storageClassName="at-once", dataSource=origin)
        await core.create_namespaced_persistent_volume_claim(space, fork)
        forked = cluster.wait(lambda: _bound(cluster, space, "fork"))
        assert (_place(cluster, forked["spec"]["volumeName"]) / "file").read_text() == "then"

    async def test_a_volume_made_by_hand_is_bound(
        self, cluster: Cluster, core: CoreV1Api, space: str, tmp_path: Path
    ) -> None:
        spec = {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(tmp_path)},
                "storageClassName": "by-hand"}  # fmt: skip
        await core.create_persistent_volume({"metadata": {"name": f"by-hand-{space}"}, "spec": spec})
        await core.create_namespaced_persistent_volume_claim(space, claim("w", storageClassName="by-hand"))
        assert cluster.wait(lambda: _bound(cluster, space, "w"))["spec"]["volumeName"] == f"by-hand-{space}"


def _bound(cluster: Cluster, space: str, name: str) -> Made | None:
    made = cluster.store.find(kinds.CLAIM, space, name)
    return made if made is not None and made["status"]["phase"] == "Bound" else None


def _place(cluster: Cluster, volume: str) -> Path:
    made = cluster.call(cluster.store.find, kinds.VOLUME, "", volume)
    assert made is not None
    return Path(made["spec"]["hostPath"]["path"])


async def test_the_real_daemon_serves_a_claim_over_a_socket_that_a_second_container_shares(
    cluster: Cluster, core: CoreV1Api, space: str
) -> None:
    await core.create_namespaced_persistent_volume_claim(space, claim("w"))
    volumes = [
        {"name": "workspace", "persistentVolumeClaim": {"claimName": "w"}}, {"name": "channel", "emptyDir": {}}
    ]  # fmt: skip
    mounts = [{"name": "workspace", "mountPath": "/workspace"}, {"name": "channel", "mountPath": "/run/airlock"}]
    relay = contained(["python3", "-m", "http.server", "--bind", "$(POD_IP)", "--directory", "/run/airlock", "7000"],
                      "relay", "module:1", env=[_ADDRESS], volumeMounts=mounts[1:],
                      readinessProbe={"tcpSocket": {"port": 7000}, "periodSeconds": 1})  # fmt: skip
    main = {"name": "main", "image": "daemon:1", "volumeMounts": mounts}
    spec = {
        "initContainers": [{"name": "runtime", "image": "runtime:1"}],
        "containers": [main, relay],
        "volumes": volumes,
    }
    await core.create_namespaced_pod(space, pod(**spec))
    made = seen(cluster, space, "p", ready)
    place = next(cluster.directory.glob(f"pods/{made['metadata']['uid']}/volumes/channel/*"))
    channel = Channel(UnixAddress(place))
    await channel.connect()
    assert (await channel.hello(timeout_s=30)).protocol_version == 1
    channel.close()
    await core.delete_namespaced_pod("p", space)
    gone(cluster, space, "p")
