from collections.abc import AsyncIterator, Iterator

import pytest
from kubernetes_asyncio.client import ApiClient

from tests.kubernetes.calls import connected
from tests.kubernetes.cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiClient]:
    async with connected(cluster) as client:
        yield client


@pytest.fixture
def space(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    cluster.call(cluster.faults.clear)
    return cluster.namespace(f"n{abs(hash(request.node.name)) % 10**10}")
