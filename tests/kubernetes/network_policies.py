"""Network policies for Pods that are processes: nothing enforces them, but a test may have it look so."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.containers import ContainerStart, Image, Launch
from tests.kubernetes.store import Made, Store

_PRELUDE = """
import socket as _socket
class _Guarded(_socket.socket):
    def connect(self, address):
        if address in {exempt}:
            return
        if {everything} or address[0] in {closed}:
            raise TimeoutError("dropped by a network policy")
        super().connect(address)
_socket.socket = _Guarded
"""


def enforcing(cluster: Cluster, image: Image, *, exempt: Collection[tuple[str, int]] = ()) -> Image:
    """Return an image whose Python code reaches only what the policies admit when it starts.

    What a plugin exempts looks as if it answered: no test can have something listen there.
    """

    def run(start: ContainerStart) -> Launch:
        words = list(start.command)
        if start.spec["name"] != "dialer":
            return image(start)
        closed = {
            str(other["status"].get("podIP"))
            for other in cluster.store.all(kinds.POD)
            if not _admits(cluster.store, other, start.pod)
        }
        everything = any("Egress" in policy["spec"]["policyTypes"] for policy in _policies(cluster.store, start.pod))
        at = words.index("-c") + 1
        words[at] = _PRELUDE.format(everything=everything, closed=closed or "()", exempt=tuple(exempt)) + words[at]
        return image(replace(start, command=words))

    return run


def _admits(store: Store, pod: Made, caller: Made) -> bool:
    found = [policy for policy in _policies(store, pod) if "Ingress" in policy["spec"]["policyTypes"]]
    rules = [peer for policy in found for rule in policy["spec"].get("ingress", ()) for peer in rule["from"]]
    return not found or any(_is(peer, caller) for peer in rules)


def _policies(store: Store, pod: Made) -> Iterator[Made]:
    for policy in store.all(kinds.NETWORK_POLICY, pod["metadata"]["namespace"]):
        if _selects(policy["spec"]["podSelector"], pod["metadata"].get("labels", {})):
            yield policy


def _is(peer: Made, pod: Made) -> bool:
    metadata = pod["metadata"]
    return (
        "podSelector" in peer
        and _selects(peer["podSelector"], metadata.get("labels", {}))
        and _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": metadata["namespace"]})
    )


def _selects(selector: Made, labels: Made) -> bool:
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())
