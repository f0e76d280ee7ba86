"""Fixtures of tests of the engine over the cluster for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import VERBS
from sandbox.sandbox import Sandbox, SandboxSpec
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes, lose
from tests.integration.sandbox.live_engine import spec
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.deletion import delete
from tests.kubernetes.kinds import Kind

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


async def until(seen: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not seen():
            await asyncio.sleep(0.01)


async def failure(engine: KubernetesEngine) -> str:
    """Wait until the only sandbox is listed as failed, and return why."""
    while True:
        (listed,) = await engine.listed("tenant-a")
        if listed.state == "failed":
            return listed.reason
        await asyncio.sleep(0.01)


async def out_of_memory(place: ClusterSite, sandbox: Sandbox) -> None:
    place.cluster.call(place.cluster.nodes.kill, place.namespace, sandbox.id, "main")


async def evicted(place: ClusterSite, sandbox: Sandbox) -> None:
    place.cluster.call(place.cluster.nodes.evict, place.namespace, sandbox.id)


async def deleted(place: ClusterSite, sandbox: Sandbox, kind: Kind = kinds.POD) -> None:
    def remove() -> None:
        made = place.cluster.store.find(kind, place.namespace, sandbox.id)
        assert made is not None
        delete(place.cluster.store, kind, made, {})

    place.cluster.call(remove)


def quota(place: ClusterSite) -> None:
    place.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": place.namespace},
            "spec": {"hard": {"pods": "0"}},
        }
    )


def restricted(place: ClusterSite) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    place.cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace, "labels": labels}}
    )


async def kill_while_it_creates(
    engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch, verb: str, resource: str, *, after: bool
) -> None:
    """Have a process die while it creates a sandbox, before or after a request of it is done."""
    await engine.prepare()
    reached = asyncio.Event()
    real = engine._parts.requests._ask

    async def ask(asked: str, of: Any, *arguments: Any, **named: Any) -> Any:
        meant = (asked, of.plural) == (verb, resource)
        if meant and not after:
            reached.set()
            await asyncio.Event().wait()
        answer = await real(asked, of, *arguments, **named)
        if meant:
            reached.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(engine._parts.requests, "_ask", ask)
    creating = asyncio.ensure_future(engine.create(spec()))
    await asyncio.wait_for(reached.wait(), 30)
    monkeypatch.setattr(engine._parts.background, "begin", _never_done)
    monkeypatch.setattr(engine._parts.gates.background, "begin", _never_done)
    creating.cancel()
    await asyncio.wait({creating}, timeout=1)
    await lose(engine)


def _never_done(work: Any) -> Any:
    """Stand for a task that a killed process does not get to run."""
    work.close()
    return asyncio.get_running_loop().create_future()
