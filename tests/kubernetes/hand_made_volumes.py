"""Volumes for a real cluster that makes none itself: a PersistentVolume by hand for each claim, on the first node."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.engines.local.local_workspaces import remove_directory
from tests.kubernetes import kinds

if TYPE_CHECKING:
    from tests.kubernetes.real_cluster import RealApi

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_HOSTNAME = "kubernetes.io/hostname"


class HandMadeVolumes:
    """Makes a volume for each claim of its class, and removes it after its claim, in a thread of its own.

    The directories are on the node. They are removed, too, if that is this machine.
    """

    def __init__(self, api: RealApi, run: str, labels: Mapping[str, str]) -> None:
        self.storage_class = f"airlock-test-{run}"
        self._api = api
        self._labels = dict(labels)
        self._directory = Path("/var/tmp") / self.storage_class
        self._node = api.list(kinds.NODE)[0]["metadata"]["labels"][_HOSTNAME]
        about = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "volumeBindingMode": "Immediate"}
        metadata = {"name": self.storage_class, "labels": self._labels}
        api.create(kinds.STORAGE_CLASS, {**about, "metadata": metadata, "provisioner": "kubernetes.io/no-provisioner"})
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volumes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10)
        if self._directory.exists():
            remove_directory(self._directory)

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                self._look()
            except Exception:
                if not self._closed.is_set():
                    log.exception("the volumes of the tests are not looked after")

    def _look(self) -> None:
        claims = [
            one for one in self._api.list(kinds.CLAIM) if one["spec"].get("storageClassName") == self.storage_class
        ]
        volumes = self._api.list(kinds.VOLUME, labels=",".join(f"{key}={value}" for key, value in self._labels.items()))
        made = {one["spec"]["claimRef"]["uid"]: one for one in volumes}
        for claim in claims:
            if claim["metadata"]["uid"] not in made and "deletionTimestamp" not in claim["metadata"]:
                self._make(claim)
        alive = {claim["metadata"]["uid"] for claim in claims}
        for uid, volume in made.items():
            if uid not in alive and "deletionTimestamp" not in volume["metadata"]:
                self._api.delete(kinds.VOLUME, "", volume["metadata"]["name"])
                place = Path(volume["spec"]["hostPath"]["path"]).parent
                if place.exists():  # on this machine
                    remove_directory(place)

    def _make(self, claim: Mapping[str, Any]) -> None:
        name, metadata = f"{self.storage_class}-{uuid.uuid4().hex[:12]}", claim["metadata"]
        reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
        here = {"key": _HOSTNAME, "operator": "In", "values": [self._node]}
        spec = {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            # The cluster for tests serves a directory of this name.
            "hostPath": {"path": str(self._directory / name / "workspace"), "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": self.storage_class,
        }
        about = {"apiVersion": "v1", "kind": "PersistentVolume"}
        self._api.create(kinds.VOLUME, {**about, "metadata": {"name": name, "labels": self._labels}, "spec": spec})
