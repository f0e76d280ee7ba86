"""How objects end: preconditions, grace, finalizers, what is protected while in use, owners, and whole namespaces."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.admission import note_quotas
from tests.kubernetes.kinds import Kind
from tests.kubernetes.statuses import conflict
from tests.kubernetes.store import Made, Store, copied

_PROTECTED = "kubernetes.io/pvc-protection"
_FOREGROUND = "foregroundDeletion"


def now(later_s: float = 0) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def delete(store: Store, kind: Kind, made: Made, options: Mapping[str, Any]) -> Made | None:
    """Begin or complete a deletion; return the object that still ends, None once it is removed."""
    name = made["metadata"]["name"]
    wanted = options.get("preconditions") or {}
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) not in {None, made["metadata"][field]}:
            theirs = f"Precondition failed: {label} in precondition: {wanted[field]}"
            raise conflict(kind, name, f"{theirs}, {label} in object meta: {made['metadata'][field]}")
    ending = copied(made)
    metadata = ending["metadata"]
    policy = options.get("propagationPolicy", "Background")
    if policy == "Foreground" and _FOREGROUND not in metadata.get("finalizers", ()):
        metadata.setdefault("finalizers", []).append(_FOREGROUND)
    if policy == "Orphan":
        _orphan(store, metadata["uid"])
    grace_s = _grace_s(kind, made, options)
    if kind == kinds.NAMESPACE:
        ending["status"]["phase"] = "Terminating"
    elif not grace_s and not metadata.get("finalizers"):
        store.remove(kind, metadata.get("namespace", ""), name)
        return None
    if "deletionTimestamp" not in metadata or grace_s < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionTimestamp"] = now(grace_s)
        metadata["deletionGracePeriodSeconds"] = grace_s
    return store.put(kind, ending)


def _grace_s(kind: Kind, made: Made, options: Mapping[str, Any]) -> int:
    if kind != kinds.POD or not made["spec"].get("nodeName") or made["status"]["phase"] in {"Succeeded", "Failed"}:
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(made["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)


def remove_if_final(store: Store, kind: Kind, made: Made) -> bool:
    """Remove an object that ends and waits for nothing more."""
    metadata = made["metadata"]
    waits = metadata.get("finalizers") or kind == kinds.NAMESPACE or metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or waits:
        return False
    store.remove(kind, metadata.get("namespace", ""), metadata["name"])
    return True


def _orphan(store: Store, uid: str) -> None:
    for kind, made in list(store.everything()):
        owners = made["metadata"].get("ownerReferences", [])
        if any(owner["uid"] == uid for owner in owners):
            orphan = copied(made)
            orphan["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
            store.put(kind, orphan)


async def collect_garbage(store: Store) -> None:
    """Delete what no owner is left of, what a namespace held, and claims that no Pod uses; count quotas. For ever."""
    with store.changes() as queue:
        while True:
            changed = {(await queue.get()).kind}
            while not queue.empty():
                changed.add(queue.get_nowait().kind)
            if changed != {kinds.EVENT}:
                _sweep(store)


def _sweep(store: Store) -> None:
    everything = list(store.everything())
    alive = {made["metadata"]["uid"] for _, made in everything}
    blocked = set()
    for kind, made in everything:
        owners = made["metadata"].get("ownerReferences", ())
        blocked |= {owner["uid"] for owner in owners}
        if owners and not any(owner["uid"] in alive for owner in owners):
            _end(store, kind, made)
    for kind, made in everything:
        metadata = made["metadata"]
        if _FOREGROUND in metadata.get("finalizers", ()):
            for child_kind, child in everything:
                if any(owner["uid"] == metadata["uid"] for owner in child["metadata"].get("ownerReferences", ())):
                    _end(store, child_kind, child)
            if metadata["uid"] not in blocked:
                _drop_finalizer(store, kind, made, _FOREGROUND)
        if kind == kinds.CLAIM and "deletionTimestamp" in metadata and not _in_use(store, made):
            _drop_finalizer(store, kind, made, _PROTECTED)
        if kind == kinds.NAMESPACE and "deletionTimestamp" in metadata:
            _empty(store, made)
    note_quotas(store)


def _end(store: Store, kind: Kind, made: Made) -> None:
    current = _current(store, kind, made)
    if current is not None and "deletionTimestamp" not in current["metadata"]:
        delete(store, kind, current, {})


def _current(store: Store, kind: Kind, made: Made) -> Made | None:
    metadata = made["metadata"]
    held = store.find(kind, metadata.get("namespace", ""), metadata["name"])
    return held if held is not None and held["metadata"]["uid"] == metadata["uid"] else None


def _drop_finalizer(store: Store, kind: Kind, made: Made, finalizer: str) -> None:
    current = _current(store, kind, made)
    if current is None:
        return
    freed = copied(current)
    left = [name for name in freed["metadata"].get("finalizers", ()) if name != finalizer]
    freed["metadata"]["finalizers"] = left
    if not left:
        del freed["metadata"]["finalizers"]
        freed["metadata"].pop("deletionGracePeriodSeconds", None)
    if not remove_if_final(store, kind, freed):
        store.put(kind, freed)


def _in_use(store: Store, claim: Made) -> bool:
    return any(
        volume.get("persistentVolumeClaim", {}).get("claimName") == claim["metadata"]["name"]
        for pod in store.all(kinds.POD, claim["metadata"]["namespace"])
        if pod["status"]["phase"] not in {"Succeeded", "Failed"}
        for volume in pod["spec"].get("volumes", ())
    )


def _empty(store: Store, namespace: Made) -> None:
    name = namespace["metadata"]["name"]
    left = [(kind, made) for kind, made in store.everything() if made["metadata"].get("namespace") == name]
    for kind, made in left:
        _end(store, kind, made)
    left_now = any(made["metadata"].get("namespace") == name for _, made in store.everything())
    if not left_now and store.find(kinds.NAMESPACE, "", name) is not None:
        store.remove(kinds.NAMESPACE, "", name)
