"""Fixtures of tests of the engine over the cluster for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import VERBS
from sandbox.sandbox import SandboxSpec
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes, lose
from tests.integration.sandbox.live_engine import spec
from tests.kubernetes.cluster import Cluster

MakeEngine = Callable[..., KubernetesEngine]

__all__ = ["MakeEngine", "cluster", "engine", "lose", "make_engine", "place", "spec"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes() as found:
        yield found


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path) -> ClusterSite:
    cluster.call(cluster.faults.clear)
    return ClusterSite(cluster, tmp_path)


@pytest_asyncio.fixture
async def make_engine(place: ClusterSite) -> AsyncIterator[MakeEngine]:
    """Make engines of one instance, each another process; at the end nothing of them is left."""
    made: list[KubernetesEngine] = []

    def make(**more: object) -> KubernetesEngine:
        made.append(place.engine(**more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    place.cluster.call(place.cluster.faults.clear)
    place.grant(VERBS)
    for one in made:
        await one.close()
    last = place.engine()
    try:
        await last.reconcile()
        await last.remove_all_of(spec().tenant)
    finally:
        await last.close()
    assert place.left() == []


@pytest.fixture
def engine(make_engine: MakeEngine) -> KubernetesEngine:
    return make_engine()


def named(thread: str, **more: object) -> SandboxSpec:
    return spec(thread, **more)  # type: ignore[arg-type]
