"""Workspaces on volumes that are not made, that only one node has, or that are full."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.workspace_archive import Contents, WorkspaceEntry
from sandbox.errors import EngineFull, NoSpace, SandboxUnavailable
from tests.conformance.kubernetes_engines import ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.cluster import storage_class
from tests.kubernetes.sandboxes import MakeEngine, cluster, make_engine, place, spec
from tests.kubernetes.scheduler import NO_PROVISIONER
from tests.kubernetes.store import copied
from tests.kubernetes.volumes import STALLED

__all__ = ["cluster", "make_engine", "place"]  # fixtures


def engine_with(make_engine: MakeEngine, place: ClusterSite, **more: object) -> KubernetesEngine:
    """Make an engine whose volumes are of a class of its own."""
    name = f"{place.namespace}-class"
    place.cluster.apply(storage_class(name, default=False, **more))  # type: ignore[arg-type]
    return make_engine(site={"storage_class": name})


@pytest.mark.full
async def test_a_class_whose_volumes_are_made_by_hand_and_that_has_none_left_is_named(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    engine = engine_with(make_engine, place, provisioner=NO_PROVISIONER)
    with pytest.raises(EngineFull, match=r"didn't find available persistent volumes to bind.*storage_class"):
        await engine.create(spec())
    assert place.left() == []


async def test_a_claim_that_stays_pending_is_named_with_its_class(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.boot._ADDRESS_S", 1.0)
    engine = engine_with(make_engine, place, provisioner=STALLED)
    with pytest.raises(SandboxUnavailable, match=rf"no volume was made for claim .*{place.namespace}-class"):
        await engine.create(spec())
    assert place.left() == []


@pytest_asyncio.fixture
async def two_nodes(place: ClusterSite) -> AsyncIterator[str]:
    """A second node, on which Pods go while the first one takes none; its name."""
    name = f"{place.namespace}-2"
    place.cluster.call(place.cluster.nodes.add, name)
    try:
        yield name
    finally:
        place.cluster.call(place.cluster.store.remove, kinds.NODE, "", name)
        place.cluster.call(_uncordon, place)


def _uncordon(place: ClusterSite) -> None:
    node = copied(place.cluster.store.find(kinds.NODE, "", "node-1") or {})
    node["spec"].pop("unschedulable", None)
    place.cluster.store.put(kinds.NODE, node)


@pytest.mark.full
async def test_files_on_a_node_that_takes_no_pods_are_waited_for_and_not_given_up(
    two_nodes: str, make_engine: MakeEngine, place: ClusterSite
) -> None:
    engine = engine_with(make_engine, place, local=True)
    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    (pod,) = place.cluster.objects(kinds.POD, place.namespace)
    assert pod["spec"]["nodeName"] == "node-1"
    assert await engine.stop_idle(sandbox.id)
    place.cluster.call(place.cluster.nodes.cordon, "node-1")
    with pytest.raises(EngineFull, match=r"1 node\(s\) had volume node affinity conflict, 1 node\(s\) were unsched"):
        await engine.create(spec())
    other = await engine.create(spec("t2"))
    pods = {
        one["metadata"]["name"]: one["spec"]["nodeName"] for one in place.cluster.objects(kinds.POD, place.namespace)
    }
    assert pods == {other.id: two_nodes}, "others go on"
    place.cluster.call(_uncordon, place)
    again = await engine.create(spec())
    assert text(await run(again.shell, "cat a")) == "kept"


@pytest.fixture
def small_volume(place: ClusterSite, tmp_path: Path) -> Iterator[str]:
    """A volume made by hand of 16 MiB, whatever its claim says; its class."""
    name = f"{place.namespace}-small"
    small = tmp_path / "small" / "workspace"
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=777", "airlock-test", small], check=True)
    place.cluster.apply(
        storage_class(name, default=False, provisioner=NO_PROVISIONER),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Ti"},
                "hostPath": {"path": str(small)},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": name,
            },
        },
    )
    yield name
    subprocess.run(["umount", small], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system: run as root")
async def test_a_volume_that_is_full_is_no_space_and_its_files_can_be_removed(
    small_volume: str, make_engine: MakeEngine
) -> None:
    engine = make_engine(site={"storage_class": small_volume})
    sandbox = await engine.create(spec())
    result = await run(sandbox.shell, "head -c 32M /dev/zero > big; echo $?")
    assert "No space left on device" in text(result)
    with pytest.raises(NoSpace):
        await sandbox.files.write("/workspace/b", bytes(1024 * 1024))
    assert await engine.stop_idle(sandbox.id), "a full volume keeps no sandbox from stopping and starting again"
    again = await engine.create(spec())
    assert text(await run(again.shell, "rm big && echo more > b && cat b")) == "more\n"
    await engine.remove_all_of(spec().tenant)


async def test_one_tenant_s_streams_leave_room_for_another_s_however_many_there_are(make_engine: MakeEngine) -> None:
    engine, going_on = make_engine(), threading.Event()

    def slow() -> Contents:
        assert going_on.wait(60)
        yield WorkspaceEntry("", "directory", 0o755), iter(())

    many = [asyncio.create_task(engine.replace_workspace(spec(f"many{one}"), slow)) for one in range(4)]
    try:
        other = await engine.create(spec("other", tenant="tenant-b"))
        async with asyncio.timeout(50):
            assert await engine.save_workspace(other.spec, lambda contents: sum(1 for _ in contents)) == 1
        assert not any(one.done() for one in many)
    finally:
        going_on.set()
        ended = await asyncio.gather(*many, return_exceptions=True)
    assert ended == [None] * 4
    for tenant in ("tenant-a", "tenant-b"):
        await engine.remove_all_of(tenant)
