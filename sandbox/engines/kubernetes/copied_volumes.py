"""The objects of snapshots that are copies of volumes, as the API takes them, and what one says of its size."""

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from sandbox.engines.containment import RUNTIME_PYTHON
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.resources import VOLUME_SNAPSHOTS, Made
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Owner, digest

KIND = "snapshot"
OF_SNAPSHOT = "airlock.dev/snapshot"
"""The label with the id of the snapshot whose files these are."""

ADOPT = "adopt"
# All that it needs to give away files of any mode; nothing of a tenant runs in its Pod.
_ADOPTING = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
_UNITS: Mapping[str, Decimal] = {
    **{
        unit: Decimal(1000) ** power for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
# The API's own bound, and that of the database's columns.
_LARGEST = 2**63 - 1
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?)(?:[eE]([0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")


def snapshot_classes(site: Site) -> Sequence[str]:
    """Return the classes of the VolumeSnapshots of all tenants; none where no snapshots are copies of volumes."""
    classes = {site.snapshot_class, *(one.get("snapshot_class") for one in site.tenants.values())}
    return sorted(filter(None, classes))


def volume_snapshot(site: Site, owner: Owner, snapshot: str, claim: str) -> Made:
    """Return the VolumeSnapshot of a thread's claim for the snapshot of an id."""
    labels = {**site.labels(KIND, owner), OF_SNAPSHOT: snapshot}
    name = site.name(KIND, digest(snapshot)[:20])
    source = {"persistentVolumeClaimName": claim}
    return {
        "apiVersion": f"{VOLUME_SNAPSHOTS.group}/{VOLUME_SNAPSHOTS.version}",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": site.namespace_of(owner), "labels": labels},
        "spec": {"volumeSnapshotClassName": site.of(owner).snapshot_class, "source": source},
    }


def claim_of(claim: Made, volume_snapshot: str) -> Made:
    """Return a claim whose volume is made of a VolumeSnapshot in its namespace."""
    source = {"apiGroup": VOLUME_SNAPSHOTS.group, "kind": "VolumeSnapshot", "name": volume_snapshot}
    return {**claim, "spec": {**claim["spec"], "dataSource": source}}


def adopting(pod: Made) -> Made:
    """Return a Pod that first gives the files of its claim, which are another one's, to the user of its daemon's tools.

    That container is the Pod's first one, which also runs a program of the runtime image, with other rights.
    """
    spec = pod["spec"]
    words = spec["containers"][0]["command"]
    user = words[words.index("--tool-uid") + 1]
    prepare = spec["initContainers"][0]
    rights = {**prepare["securityContext"], "capabilities": {"drop": ["ALL"], "add": list(_ADOPTING)}}
    adopt = {
        **prepare,
        "name": ADOPT,
        "command": [*RUNTIME_PYTHON, "-m", "sandbox.daemon.volume_adopter", WORKSPACE, user, user],
        "securityContext": rights,
        "volumeMounts": [{"name": "workspace", "mountPath": WORKSPACE}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {**pod, "spec": {**spec, "initContainers": [adopt, *spec["initContainers"]]}}


def bytes_of(quantity: object) -> int | None:
    """Return a size as the API writes it, rounded up; None for what is none, or more than the API can hold."""
    found = _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) else None
    if found is None:
        return None
    number, power, unit = found.groups()
    size = Decimal(number) * (Decimal(10) ** int(power) if power else _UNITS[unit or ""])
    return int(size.to_integral_value(ROUND_CEILING)) if size <= _LARGEST else None
