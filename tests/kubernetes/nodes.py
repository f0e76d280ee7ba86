"""Nodes, and what befalls them and their Pods.

For the cluster's thread: `cluster.call(cluster.nodes.drain, "node-1")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.kubernetes import kinds
from tests.kubernetes.deletion import delete, now
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.pod_run import PodRun
from tests.kubernetes.pod_status import with_condition, write_status
from tests.kubernetes.store import Made, Store, copied

_ROOM = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1000"}


class Nodes:
    """The nodes of a cluster, each as large as it is told to be."""

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self._store = store
        self._kubelet = kubelet

    def add(
        self,
        name: str,
        room: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        amounts = {**_ROOM, **(room or {})}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
        version = {"kubeletVersion": "v1.36.0", "architecture": "amd64", "operatingSystem": "linux"}
        metadata = {"name": name, "uid": f"node-{name}", "creationTimestamp": now()}
        labelled = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **(labels or {})}
        node: Made = {"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "labels": labelled}}
        node["spec"] = {"taints": list(taints)} if taints else {}
        node["status"] = {"capacity": amounts, "allocatable": amounts, "conditions": [ready], "nodeInfo": version}
        self._store.put(kinds.NODE, node)

    def cordon(self, name: str) -> None:
        """Place no more Pods on a node."""
        node = copied(self._store.find(kinds.NODE, "", name) or {})
        node["spec"]["unschedulable"] = True
        self._store.put(kinds.NODE, node)

    def drain(self, name: str) -> None:
        """Cordon a node and evict its Pods, each with its grace."""
        self.cordon(name)
        for pod in self._pods_of(name):
            message = "Eviction API: evicting"
            self._disrupt(pod, "EvictionByEvictionAPI", message)

    def lose(self, name: str) -> None:
        """Lose a node: its Pods end without a word, are unready, and are deleted but never removed."""
        node = copied(self._store.find(kinds.NODE, "", name) or {})
        message = "Kubelet stopped posting node status."
        conditions = node["status"]["conditions"]
        node["status"]["conditions"] = with_condition(conditions, "Ready", "Unknown", "NodeStatusUnknown", message)
        taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": now()}
        node["spec"]["taints"] = [{**taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        self._store.put(kinds.NODE, node)
        for pod in self._pods_of(name):
            run = self._kubelet.find(pod)
            run.silent = True
            run.stop()
            conditions = with_condition(pod["status"]["conditions"], "Ready", "False", "NodeNotReady")
            unready = write_status(self._store, pod, {"conditions": conditions})
            if unready is not None:
                self._disrupt(unready, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

    def evict(self, namespace: str, name: str, message: str = "The node was low on resource: memory.") -> None:
        """Evict a Pod as the kubelet does under pressure: it is Failed with the reason Evicted."""
        self._run_of(namespace, name).fail("Evicted", message)

    def kill(self, namespace: str, name: str, container: str, reason: str = "OOMKilled") -> None:
        """Kill a container, for want of memory if no other reason is given."""
        self._run_of(namespace, name).kill(container, reason)

    def _run_of(self, namespace: str, name: str) -> PodRun:
        pod = self._store.find(kinds.POD, namespace, name)
        if pod is None:
            raise LookupError(f"there is no Pod {namespace}/{name}")
        return self._kubelet.find(pod)

    def _pods_of(self, node: str) -> list[Made]:
        return [pod for pod in self._store.all(kinds.POD) if pod["spec"].get("nodeName") == node]

    def _disrupt(self, pod: Made, reason: str, message: str) -> None:
        conditions = with_condition(pod["status"].get("conditions", ()), "DisruptionTarget", "True", reason, message)
        marked = write_status(self._store, pod, {"conditions": conditions})
        if marked is not None:
            delete(self._store, kinds.POD, marked, {})
