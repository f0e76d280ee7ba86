"""A real gateway over the cluster for tests: calls, a gateway that is killed, and another one that goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes
from tests.gateway_process import Home, Served, airlock, make_home, served
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes() as found:
        yield found


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path) -> ClusterSite:
    return ClusterSite(cluster, tmp_path)


@pytest.fixture
def home(place: ClusterSite, tmp_path: Path) -> Home:
    made = make_home(tmp_path / "home")
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
        first.kill()
    with served(home, within=place.within) as second:
        said = await execute(home, second, 'cat a "$TMPDIR/b"')
        assert said["content"] == "kept\nsame\n", "the same files, and the same sandbox"
        (after,) = place.cluster.objects(kinds.POD, place.namespace)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one.split()[0] for one in place.left()] == ["workspace", "Lease"], "it removes its sandboxes when it stops"
