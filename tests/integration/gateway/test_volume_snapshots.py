"""Snapshots that a cluster keeps as copies of volumes, over real gateways: the same tests as of other snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.client import Client
from gateway.errors import Internal, QuotaExceeded, Unavailable
from sandbox.sandbox import digest
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes
from tests.gateway_process import Home, make_home, served
from tests.integration.gateway.conftest import Pair
from tests.integration.gateway.test_snapshots import (
    test_a_request_makes_one_snapshot_and_its_id_is_good_for_no_other,
    test_a_thread_is_not_restored_while_a_call_is_under_way_in_it,
    test_a_thread_whose_restore_was_cut_short_takes_no_calls_until_it_is_restored,
    test_another_tenants_snapshot_is_not_there,
    test_files_are_kept_and_put_back_into_the_thread_and_into_another,
)
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster

__all__ = [
    "test_a_request_makes_one_snapshot_and_its_id_is_good_for_no_other",
    "test_a_thread_is_not_restored_while_a_call_is_under_way_in_it",
    "test_a_thread_whose_restore_was_cut_short_takes_no_calls_until_it_is_restored",
    "test_another_tenants_snapshot_is_not_there",
    "test_files_are_kept_and_put_back_into_the_thread_and_into_another",
]

_QUOTA = "quotas: {snapshot_bytes: 7000000000}\n"  # three volumes of the default size


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes() as found:
        if found.real:
            pytest.skip("it needs a driver that takes snapshots")
        yield found


def home_at(place: ClusterSite, directory: Path, **more: object) -> Home:
    made = make_home(directory)
    place.serve_in(made, **more)
    return made


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> ClusterSite:
    return ClusterSite(cluster, tmp_path_factory.mktemp("place"), snapshot_class="standard")


@pytest.fixture(scope="module")
def pair(place: ClusterSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = home_at(place, tmp_path_factory.mktemp("gateway"))
    policy = home.config.parent / "policies" / "default.yaml"
    other_key = home.add_tenant("strict")
    policy.write_text(policy.read_text() + "quotas: {snapshot_bytes: 100000000000}\n")
    with served(home, within=place.within) as gateway:
        yield Pair(home, gateway.address, home.key, other_key)


@pytest.fixture
def own(cluster: Cluster, tmp_path: Path) -> ClusterSite:
    return ClusterSite(cluster, tmp_path, snapshot_class="standard")


def snapshots_of(place: ClusterSite) -> list[dict[str, Any]]:
    found = [one for where in place.namespaces for one in place.cluster.objects(kinds.SNAPSHOT, where)]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def stored(home: Home) -> list[str]:
    found = (home.config.parent / "state" / "snapshots").rglob("snapshots/*")
    return sorted(path.suffix for path in found)


async def test_a_fork_has_the_files_and_a_deletion_leaves_no_volume_snapshot(own: ClusterSite, tmp_path: Path) -> None:
    home = home_at(own, tmp_path / "home")
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("a", "/workspace/x", b"one")
            kept = await client.create_snapshot("a")
            assert (kept.files, kept.size_bytes, kept.skipped) == (1, 3, 0)
            assert kept.stored_bytes > 2 * 2**30, "that of a volume made of it"
            assert stored(home) == [".metadata", ".volume"]
            await client.write_file("a", "/workspace/x", b"two")
            await client.fork_thread("a", "b", snapshot_id=kept.id)
            await client.fork_thread("a", "c")
            found = [await client.read_file(thread, "/workspace/x") for thread in "bc"]
            assert found == [b"one", b"two"]
            (asked, forked) = snapshots_of(own)
            labels = asked["metadata"]["labels"]
            assert (
                labels["airlock.dev/tenant"] == forked["metadata"]["labels"]["airlock.dev/tenant"] == digest("default")
            )
            await client.delete_snapshot(kept.id)
            (left,) = snapshots_of(own)
            assert left["metadata"]["name"] in {asked["metadata"]["name"], forked["metadata"]["name"]}
            await client.delete_thread("a")
            assert snapshots_of(own) == [], "what was kept for a fork goes with the thread"
            assert stored(home) == []


@pytest.mark.full
async def test_a_copy_counts_in_the_quota_with_the_size_of_its_volume_and_a_refusal_leaves_none(
    own: ClusterSite, tmp_path: Path
) -> None:
    home = home_at(own, tmp_path / "home")
    policy = home.config.parent / "policies" / "default.yaml"
    policy.write_text(policy.read_text() + _QUOTA)
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("a", "/workspace/x", b"one")
            kept = [await client.create_snapshot("a") for _ in range(3)]
            with pytest.raises(QuotaExceeded, match="snapshot_bytes"):
                await client.create_snapshot("a")
            assert len(snapshots_of(own)) == 3
            await client.delete_snapshot(kept[0].id)
            await client.create_snapshot("a")
            own.cluster.call(own.cluster.store.remove, kinds.SNAPSHOT, own.namespace, _name_of(own, kept[1].id))
            with pytest.raises(Internal, match="not on this gateway's cluster any more"):
                await client.restore_snapshot(kept[1].id)
            assert await client.read_file("a", "/workspace/x") == b"one"


def _name_of(place: ClusterSite, snapshot: str) -> str:
    (found,) = [one for one in snapshots_of(place) if one["metadata"]["labels"]["airlock.dev/snapshot"] == snapshot]
    return str(found["metadata"]["name"])


async def test_a_gateway_that_is_killed_while_a_copy_is_taken_leaves_none_of_it(
    own: ClusterSite, tmp_path: Path
) -> None:
    about = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "slow"}}
    own.cluster.apply({**about, "driver": "stalled.test", "deletionPolicy": "Delete"})
    home = home_at(own, tmp_path / "home", snapshot_class="slow")
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.write_file("a", "/workspace/x", b"one")
            taking = asyncio.create_task(client.create_snapshot("a"))
            while not snapshots_of(own):
                await asyncio.sleep(0.01)
            gateway.kill()
            with pytest.raises(Unavailable):
                await taking
    home.configure(sandbox={"kubernetes": {**_kubernetes(home), "snapshot_class": "standard"}})
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key) as client:
            assert [one async for one in client.snapshots()] == []
            while snapshots_of(own):
                await asyncio.sleep(0.01)
            kept = await client.create_snapshot("a")
            await client.restore_snapshot(kept.id, thread="b")
            assert await client.read_file("b", "/workspace/x") == b"one"


def _kubernetes(home: Home) -> dict[str, Any]:
    return dict(yaml.safe_load(home.config.read_text())["sandbox"]["kubernetes"])


@pytest.mark.full
async def test_an_erased_tenant_has_no_copies_and_without_the_class_it_is_not_erased(
    own: ClusterSite, tmp_path: Path
) -> None:
    home = home_at(own, tmp_path / "home")
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.write_file("a", "/workspace/x", b"one")
            kept = await client.create_snapshot("a")
    settings = _kubernetes(home)
    home.configure(sandbox={"kubernetes": {**settings, "snapshot_class": None}})
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            for refused in (client.restore_snapshot(kept.id), client.delete_snapshot(kept.id)):
                with pytest.raises(Unavailable, match="have the operator set it again"):
                    await refused
            assert await client.read_file("a", "/workspace/x") == b"one"
            assert (await client.create_snapshot("a")).stored_bytes < 2**20, "as an archive"
            await client.restore_snapshot((await client.create_snapshot("a")).id, thread="b")
    home.configure(sandbox={"kubernetes": settings})
    document = yaml.safe_load(home.config.read_text())
    home.config.write_text(yaml.safe_dump({**document, "tenants": {"other": {"policy": "policies/default.yaml"}}}))
    key = home.make_key("")
    with served(home, within=own.within) as gateway:
        async with Client(gateway.address, key, retry=None) as client:
            erased = await client.delete_tenant_data("default")
            assert erased.left["snapshot_files"] == 0
    assert snapshots_of(own) == []
    assert stored(home) == []
