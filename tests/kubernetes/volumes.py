"""Volumes as directories: claims are bound to them, made by a class or by hand, and snapshots are copies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandbox.engines.local.local_workspaces import remove_directory
from tests.kubernetes import kinds
from tests.kubernetes.deletion import now
from tests.kubernetes.pod_files import CONTENTS
from tests.kubernetes.quantities import quantity
from tests.kubernetes.scheduler import NO_PROVISIONER, SELECTED_NODE, only_on
from tests.kubernetes.store import Made, Store, copied

# A provisioner, or a driver of snapshots, that does not run.
STALLED = "stalled.test"


class Volumes:
    """The volume controller and the driver of every storage class."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory

    async def run(self) -> None:
        """Bind claims and take snapshots for ever."""
        kinds_watched = (kinds.CLAIM, kinds.VOLUME, kinds.STORAGE_CLASS, kinds.SNAPSHOT)
        async for _ in self._store.follow(*kinds_watched):
            for snapshot in self._store.all(kinds.SNAPSHOT):
                if not snapshot.get("status"):
                    await self._take(snapshot)
            self._forget_snapshots()
            for claim in self._store.all(kinds.CLAIM):
                if claim["status"]["phase"] == "Pending" and "deletionTimestamp" not in claim["metadata"]:
                    await self._bind(claim)
            for volume in self._store.all(kinds.VOLUME):
                self._reclaim(volume)

    async def _bind(self, claim: Made) -> None:
        volume = self._by_hand(claim) or await self._provisioned(claim)
        if volume is None:
            return
        metadata = claim["metadata"]
        taken = copied(volume)
        reference = {"kind": "PersistentVolumeClaim", "namespace": metadata["namespace"], "name": metadata["name"]}
        taken["spec"]["claimRef"] = {**reference, "uid": metadata["uid"]}
        taken["status"] = {"phase": "Bound"}
        self._store.put(kinds.VOLUME, taken)
        held = self._store.find(kinds.CLAIM, metadata["namespace"], metadata["name"])
        if held is None or held["metadata"]["uid"] != metadata["uid"]:
            return
        bound = copied(held)
        bound["spec"]["volumeName"] = taken["metadata"]["name"]
        capacity, modes = taken["spec"]["capacity"], taken["spec"]["accessModes"]
        bound["status"] = {"phase": "Bound", "capacity": capacity, "accessModes": modes}
        self._store.put(kinds.CLAIM, bound)

    def _by_hand(self, claim: Made) -> Made | None:
        """Return a volume that somebody made and nobody has."""
        spec, metadata = claim["spec"], claim["metadata"]
        for volume in self._store.all(kinds.VOLUME):
            reference = volume["spec"].get("claimRef", metadata)
            if (
                (reference.get("namespace"), reference["name"]) == (metadata["namespace"], metadata["name"])
                and volume.get("status", {}).get("phase", "Available") == "Available"
                and volume["spec"].get("storageClassName", "") == spec.get("storageClassName", "")
                and quantity(volume["spec"]["capacity"]["storage"])
                >= quantity(spec["resources"]["requests"]["storage"])
                and set(spec["accessModes"]) <= set(volume["spec"]["accessModes"])
            ):
                return volume
        return None

    async def _provisioned(self, claim: Made) -> Made | None:
        spec, metadata = claim["spec"], claim["metadata"]
        made_by = self._store.find(kinds.STORAGE_CLASS, "", spec.get("storageClassName", ""))
        if made_by is None or made_by["provisioner"] in (NO_PROVISIONER, STALLED):
            return None
        late = made_by["volumeBindingMode"] == "WaitForFirstConsumer"
        if late and SELECTED_NODE not in metadata.get("annotations", {}):
            return None
        name = f"pvc-{metadata['uid']}"
        place = self._directory / "volumes" / name / CONTENTS
        # There are provisioners that do not know `dataSource`: they make an empty volume, and say nothing.
        ignores = (made_by.get("parameters") or {}).get("sources") == "ignored"
        source = {} if ignores else spec.get("dataSource") or {}
        if source.get("kind") == "VolumeSnapshot":
            snapshot = self._store.find(kinds.SNAPSHOT, metadata["namespace"], source["name"])
            if snapshot is None or not snapshot.get("status", {}).get("readyToUse"):
                return None
            await _copy(self._snapshot_place(snapshot), place)
        elif source.get("kind") == "PersistentVolumeClaim":
            cloned = self._place_of(metadata["namespace"], source["name"])
            if cloned is None:
                return None
            await _copy(cloned, place)
        place.mkdir(parents=True, exist_ok=True)
        on_disk = (made_by.get("parameters") or {}).get("disk") == "local" and late
        node = {"metadata": {"name": metadata.get("annotations", {}).get(SELECTED_NODE)}}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "uid": name, "creationTimestamp": now()},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "hostPath": {"path": str(place)},
                "persistentVolumeReclaimPolicy": made_by["reclaimPolicy"],
                "storageClassName": made_by["metadata"]["name"],
                "volumeMode": spec["volumeMode"],
                **({"nodeAffinity": only_on(node)} if on_disk else {}),
            },
        }

    def _place_of(self, namespace: str, claim_name: str) -> Path | None:
        claim = self._store.find(kinds.CLAIM, namespace, claim_name)
        volume = self._store.find(kinds.VOLUME, "", (claim or {"spec": {}})["spec"].get("volumeName", ""))
        return None if volume is None else Path(volume["spec"]["hostPath"]["path"])

    def _snapshot_place(self, snapshot: Made) -> Path:
        return self._directory / "snapshots" / snapshot["metadata"]["uid"] / CONTENTS

    async def _take(self, snapshot: Made) -> None:
        spec, namespace = snapshot["spec"], snapshot["metadata"]["namespace"]
        place = self._place_of(namespace, spec["source"].get("persistentVolumeClaimName", ""))
        noted = copied(snapshot)
        wanted = spec.get("volumeSnapshotClassName", "")
        made_by = self._store.find(kinds.SNAPSHOT_CLASS, "", wanted)
        if made_by is None:
            message = f'Failed to get snapshot class with error volumesnapshotclass "{wanted}" not found'
            noted["status"] = {"readyToUse": False, "error": {"message": message, "time": now()}}
        elif message := (made_by.get("parameters") or {}).get("refuses", ""):
            noted["status"] = {"readyToUse": False, "error": {"message": message, "time": now()}}
        elif place is None or made_by["driver"] == STALLED:
            return
        else:
            await _copy(place, self._snapshot_place(snapshot))
            claim = self._store.find(kinds.CLAIM, namespace, spec["source"]["persistentVolumeClaimName"]) or {}
            content = f"snapcontent-{snapshot['metadata']['uid']}"
            noted["status"] = {"boundVolumeSnapshotContentName": content, "creationTime": now(), "readyToUse": True}
            noted["status"]["restoreSize"] = claim["status"]["capacity"]["storage"]
        if self._store.find(kinds.SNAPSHOT, namespace, snapshot["metadata"]["name"]) == snapshot:
            self._store.put(kinds.SNAPSHOT, noted)

    def _forget_snapshots(self) -> None:
        """Remove the copies whose snapshots are gone."""
        there = {snapshot["metadata"]["uid"] for snapshot in self._store.all(kinds.SNAPSHOT)}
        places = self._directory / "snapshots"
        for place in places.iterdir() if places.exists() else ():
            if place.name not in there:
                remove_directory(place)

    def _reclaim(self, volume: Made) -> None:
        """Remove what was made for a claim that is gone; one made by hand, or to be retained, is Released."""
        reference = volume["spec"].get("claimRef")
        if reference is None or volume.get("status", {}).get("phase") != "Bound":
            return
        claim = self._store.find(kinds.CLAIM, reference["namespace"], reference["name"])
        if claim is not None and claim["metadata"]["uid"] == reference.get("uid"):
            return
        name = volume["metadata"]["name"]
        if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete" and name.startswith("pvc-"):
            self._store.remove(kinds.VOLUME, "", name)
            remove_directory(self._directory / "volumes" / name)
        else:
            released = copied(volume)
            released["status"] = {"phase": "Released"}
            self._store.put(kinds.VOLUME, released)


async def _copy(source: Path, place: Path) -> None:
    """Copy a volume as it is: whose its files are, their names, pipes among them."""
    place.parent.mkdir(parents=True, exist_ok=True)
    copying = await asyncio.create_subprocess_exec("cp", "--archive", "--no-target-directory", source, place)
    if await copying.wait():
        raise OSError(f"{source} cannot be copied")
