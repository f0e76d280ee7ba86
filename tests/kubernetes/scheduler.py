"""The scheduler: places each Pod on a node that has room for it, or says why none has."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from tests.kubernetes import kinds
from tests.kubernetes.pod_status import event, with_condition, write_status
from tests.kubernetes.quantities import quantity
from tests.kubernetes.store import Made, Store, copied

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
_COUNTED = ("cpu", "memory", "ephemeral-storage")


async def place_pods(store: Store) -> None:
    """Place Pods for ever, trying again after each change of Pods, nodes and claims."""
    with store.changes() as queue:
        while True:
            for pod in store.all(kinds.POD):
                waits = not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
                if waits and "deletionTimestamp" not in pod["metadata"]:
                    _place(store, pod)
            while (await queue.get()).kind not in {kinds.POD, kinds.NODE, kinds.CLAIM}:
                pass


def _place(store: Store, pod: Made) -> None:
    missing = _missing_claim(store, pod)
    reasons: Counter[str] = Counter()
    nodes = store.all(kinds.NODE)
    chosen = None
    for node in nodes:
        reason = _refusal(store, node, pod)
        if reason:
            reasons[reason] += 1
        elif chosen is None:
            chosen = node
    if missing or chosen is None:
        listed = missing or ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{len(nodes)} nodes are available: {listed}." if nodes else "no nodes available to schedule pods"
        old = pod["status"].get("conditions", ())
        if not any(item["type"] == "PodScheduled" and item.get("message") == message for item in old):
            write_status(
                store, pod, {"conditions": with_condition(old, "PodScheduled", "False", "Unschedulable", message)}
            )
            event(store, pod, "FailedScheduling", message)
        return
    if _wait_for_volumes(store, pod, chosen["metadata"]["name"]):
        return
    placed = copied(pod)
    placed["spec"]["nodeName"] = chosen["metadata"]["name"]
    placed["status"]["conditions"] = with_condition(placed["status"].get("conditions", ()), "PodScheduled", "True")
    store.put(kinds.POD, placed)


def _claims(pod: Made) -> list[str]:
    volumes = pod["spec"].get("volumes", ())
    return [item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item]


def _missing_claim(store: Store, pod: Made) -> str:
    for name in _claims(pod):
        claim = store.find(kinds.CLAIM, pod["metadata"]["namespace"], name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if "deletionTimestamp" in claim["metadata"]:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if claim["status"]["phase"] == "Pending" and not _binds_late(store, claim):
            return "pod has unbound immediate PersistentVolumeClaims"
    return ""


def _binds_late(store: Store, claim: Made) -> bool:
    held = store.find(kinds.STORAGE_CLASS, "", claim["spec"].get("storageClassName", ""))
    return held is not None and held["volumeBindingMode"] == "WaitForFirstConsumer"


def _wait_for_volumes(store: Store, pod: Made, node: str) -> bool:
    """Ask for the volumes of claims that wait for their first Pod; return whether any is still to come."""
    waits = False
    for name in _claims(pod):
        claim = store.find(kinds.CLAIM, pod["metadata"]["namespace"], name)
        if claim is not None and claim["status"]["phase"] == "Pending":
            waits = True
            asked = copied(claim)
            asked["metadata"].setdefault("annotations", {})[SELECTED_NODE] = node
            store.put(kinds.CLAIM, asked)
    return waits


def _refusal(store: Store, node: Made, pod: Made) -> str:
    """Return why a node does not take a Pod, "" if it does."""
    labels = node["metadata"].get("labels", {})
    wanted = pod["spec"].get("nodeSelector", {})
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    if any(labels.get(key) != value for key, value in wanted.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and not any(
            _tolerates(item, taint) for item in pod["spec"]["tolerations"]
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if reason := _volume_refusal(store, node, pod):
        return reason
    here = [
        item
        for item in store.all(kinds.POD)
        if item["spec"].get("nodeName") == node["metadata"]["name"]
        and item["status"]["phase"] in {"Pending", "Running"}
    ]
    room = node["status"]["allocatable"]
    if len(here) + 1 > quantity(room["pods"]):
        return "Too many pods"
    for resource in _COUNTED:
        used = sum((_requests(item, resource) for item in (*here, pod)), Decimal(0))
        if used > quantity(room[resource]):
            return f"Insufficient {resource}"
    return ""


def _volume_refusal(store: Store, node: Made, pod: Made) -> str:
    """Return why the volumes of a Pod keep it from a node: they are on another, or nobody makes them."""
    for name in _claims(pod):
        claim = store.find(kinds.CLAIM, pod["metadata"]["namespace"], name) or {"spec": {}}
        made_by = store.find(kinds.STORAGE_CLASS, "", claim["spec"].get("storageClassName", "")) or {}
        volume = store.find(kinds.VOLUME, "", claim["spec"].get("volumeName", ""))
        if volume is None and made_by.get("provisioner") == NO_PROVISIONER:
            return "node(s) didn't find available persistent volumes to bind"
        if volume is not None and volume["spec"].get("nodeAffinity", only_on(node)) != only_on(node):
            return "node(s) had volume node affinity conflict"
    return ""


def only_on(node: Made) -> Made:
    """Return the affinity of a volume that is a disk of a node."""
    match = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node["metadata"]["name"]]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [match]}]}}


def _requests(pod: Made, resource: str) -> Decimal:
    containers = pod["spec"]["containers"]
    return sum((quantity(item["resources"].get("requests", {}).get(resource, 0)) for item in containers), Decimal(0))


def _tolerates(toleration: Made, taint: Made) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    same = toleration["key"] == taint["key"]
    return bool(
        same and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
    )
