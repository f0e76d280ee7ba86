"""A Pod's status as the kubelet reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.deletion import now
from tests.kubernetes.store import Made, Store, copied


def current(store: Store, pod: Made) -> Made | None:
    """Return a Pod as it is now, None if it is gone or another has its name."""
    metadata = pod["metadata"]
    held = store.find(kinds.POD, metadata["namespace"], metadata["name"])
    return held if held is not None and held["metadata"]["uid"] == metadata["uid"] else None


def write_status(store: Store, pod: Made, change: Mapping[str, Any]) -> Made | None:
    """Merge a change into the status of a Pod, if there still is one."""
    held = current(store, pod)
    if held is None:
        return None
    new = copied(held)
    new["status"].update(change)
    return store.put(kinds.POD, new)


def with_condition(
    conditions: Sequence[Made], kind: str, value: str, reason: str = "", message: str = ""
) -> list[Made]:
    """Return conditions with one set; its time moves only when its status does."""
    old = next((item for item in conditions if item["type"] == kind), None)
    since = old["lastTransitionTime"] if old and old["status"] == value else now()
    made = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": since}
    made |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    del made["lastProbeTime"]
    return [*(item for item in conditions if item["type"] != kind), made]


def container_status(container: Made, state: Made, pod_uid: str, **more: Any) -> Made:
    """Return what a container's status is at first."""
    image = container["image"]
    status = {"name": container["name"], "image": image, "imageID": "", "ready": False, "started": False}
    status |= {"restartCount": 0, "state": state, **more}
    if "waiting" not in state:
        status["imageID"] = f"docker.io/{image}@sha256:{'0' * 64}"
        status["containerID"] = f"containerd://{pod_uid}-{container['name']}"
    return status


def event(store: Store, pod: Made, reason: str, message: str, kind: str = "Warning") -> None:
    """Note an event of a Pod; the same one again is only counted."""
    metadata = pod["metadata"]
    name = f"{metadata['name']}.{metadata['uid'][:8]}.{reason.lower()}"
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"]}
    about |= {"name": metadata["name"], "uid": metadata["uid"]}
    old = store.find(kinds.EVENT, metadata["namespace"], name)
    made = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {**({} if old is None else old["metadata"]), "name": name, "namespace": metadata["namespace"]},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": kind,
        "count": 1 if old is None else old["count"] + 1,
        "lastTimestamp": now(),
    }
    made["metadata"].setdefault("uid", name)
    made["metadata"].setdefault("creationTimestamp", now())
    store.put(kinds.EVENT, made)
