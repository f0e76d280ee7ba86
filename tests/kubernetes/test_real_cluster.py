"""`make test-kubernetes`, on the cluster for tests as if it were a real one: by a kubeconfig, from another process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.kubernetes_engines import IMAGES, RUNTIME_IMAGE, runtime
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.network_policies import enforcing
from tests.kubernetes.real_cluster import RUN_LABEL, kubeconfig_of_real_cluster

pytestmark = pytest.mark.skipif(kubeconfig_of_real_cluster() is not None, reason="it starts these tests itself")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(IMAGES, agent_sandbox=False) as found:
        found.images[RUNTIME_IMAGE] = enforcing(found, runtime)
        # It has no volumes of its own, as a real one may not.
        found.call(found.store.remove, kinds.STORAGE_CLASS, "", "standard")
        yield found


def started(cluster: Cluster, directory: Path, names: str) -> subprocess.Popen[str]:
    kubeconfig = cluster.write_kubeconfig(directory / "kubeconfig")
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "AIRLOCK_TEST_UNWALLED": "1"}
    words = ("deploy/run-tests", "kubernetes", "-k", f"kubernetes and ({names})", "-o", f"cache_dir={directory}/cache")
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def left(cluster: Cluster) -> list[str]:
    """Return what the tests have left, whatever it is."""
    return [
        f"{kind.kind} {made['metadata']['name']}"
        for kind, made in cluster.call(lambda: list(cluster.store.everything()))
        if RUN_LABEL in made["metadata"].get("labels", {}) or made["metadata"].get("namespace", "default") != "default"
    ]


def test_the_tests_of_the_engine_run_on_a_real_cluster_by_its_kubeconfig(cluster: Cluster, tmp_path: Path) -> None:
    names = (
        "workspace_is_there_for_the_next_process",
        "(whose_pod_ends and not oom)",
        "(refuses_says_what and quota)",
        "has_all_passes",
    )
    running = started(cluster, tmp_path, " or ".join(names))
    said, _ = running.communicate(timeout=180)
    assert running.returncode == 0, said
    assert " failed" not in said
    assert "not on a real cluster: nodes.evict" in said, "what cannot be asked of a real one is skipped, and named"
    assert left(cluster) == []


@pytest.mark.full
def test_what_is_interrupted_leaves_nothing_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    running = started(cluster, tmp_path, "whose_pod_ends and deleted")
    try:
        cluster.wait(lambda: cluster.store.all(kinds.POD), 60)
        assert left(cluster) != []
        os.killpg(running.pid, signal.SIGINT)
        said, _ = running.communicate(timeout=120)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode != 0, said
    assert left(cluster) == []
