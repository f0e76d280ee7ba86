"""Snapshots as copies of volumes: VolumeSnapshots of snapshot.storage.k8s.io, which the driver of a class takes.

A driver copies a volume as its disk is at one moment, and knows nothing of what the node's kernel has yet to write. So
the daemon over a thread's files first has that written: the one of its sandbox, or of a carrier. Files come back in a
claim made of the copy, which a carrier's first container gives to the user of the new claim; then it takes the place of
the thread's own, as files do that come from an archive. A copy is found by its labels, whose snapshot they name: what
the gateway has no record of, it removes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.client.replies import plain_text
from sandbox.engines.engine import KeptCopy, VolumeCopy
from sandbox.engines.kubernetes import copied_volumes, manifests
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.kubernetes_requests import Conflict
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.resources import CLAIMS, VOLUME_SNAPSHOTS, Made
from sandbox.engines.kubernetes.workspaces import Reached, Workspaces
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Owner, SandboxSpec, owner_of

log = logging.getLogger(__name__)

# Until the driver has taken the copy: a thread without sandbox waits for it. And until a volume can be made of it.
_CUT_S, _READY_S = 60.0, 300.0
# Drivers try again what failed.
_FAILING_S = 5.0
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.05, 2.0
_SHOWN = 300


@dataclass(frozen=True)
class VolumeSnapshots:
    """Satisfies VolumeCopies."""

    parts: Parts
    workspaces: Workspaces

    def copies_of(self, spec: SandboxSpec) -> bool:
        return self.parts.site.of(owner_of(spec)).snapshot_class is not None and _settles(spec.runtime)

    async def volume_bytes(self, spec: SandboxSpec) -> int:
        owner, parts = owner_of(spec), self.parts
        await parts.prepared()
        labels = {"kind": "workspace", "tenant": owner[0], "thread": owner[1]}
        found, _ = await parts.requests.list(CLAIMS, parts.site.namespace_of(owner), parts.site.selector(**labels))
        capacities = (((made.get("status") or {}).get("capacity") or {}).get("storage") for made in found)
        # The driver may have rounded up what the claim asked for.
        return max(spec.limits.workspace_bytes, *(copied_volumes.bytes_of(one) or 0 for one in capacities), 0)

    async def copy_workspace(
        self, spec: SandboxSpec, snapshot: str, check: Callable[[WorkspaceCounts], None]
    ) -> VolumeCopy | None:
        owner, parts = owner_of(spec), self.parts

        async def copy(reached: Reached) -> tuple[Made, WorkspaceCounts, bool] | None:
            if not _settles(reached.runtime):
                return None
            counts = await self.workspaces.settled(reached.channel)
            check(counts)
            wanted = copied_volumes.volume_snapshot(parts.site, owner, snapshot, reached.claim)
            await self._create(wanted)
            return await self._awaited(wanted, "taken", _CUT_S), counts, reached.at_rest

        begun = await self.workspaces.read(spec, copy)
        if begun is None:
            return None
        made, counts, at_rest = begun
        made = await self._awaited(made, "ready to use", _READY_S)
        # Some drivers do not say: then it is the size that the claim asked for.
        stored_bytes = copied_volumes.bytes_of(made["status"].get("restoreSize")) or spec.limits.workspace_bytes
        return VolumeCopy(made["metadata"]["name"], made["metadata"]["uid"], stored_bytes, counts, at_rest)

    async def restore_copy(self, spec: SandboxSpec, copy: VolumeCopy) -> bool:
        parts, owner = self.parts, owner_of(spec)
        await parts.prepared()
        found = await parts.requests.get(VOLUME_SNAPSHOTS, parts.site.namespace_of(owner), copy.name)
        if found is None or not self._is(found, owner, copy) or not (found.get("status") or {}).get("readyToUse"):
            return False
        # A volume is not smaller than the one that was copied, whose size its driver may have rounded up.
        size_bytes = max(spec.limits.workspace_bytes, copy.stored_bytes)
        large = replace(spec, limits=replace(spec.limits, workspace_bytes=size_bytes))

        async def make(gate: Gate, claim: str) -> None:
            # Its daemon runs over the files, which are there and belong to it.
            async with self.workspaces.carrier(gate, large, claim, copy=copy.name) as channel:
                _refuse_lacking(await self.workspaces.settled(channel), copy)

        await self.workspaces.replace_by(spec, make)
        return True

    async def kept_copies(self, tenant: str = "") -> Sequence[KeptCopy]:
        parts = self.parts
        await parts.prepared()
        labels = {"kind": copied_volumes.KIND, **({"tenant": tenant} if tenant else {})}
        found, _ = await parts.requests.list(VOLUME_SNAPSHOTS, parts.site.scope(tenant), parts.site.selector(**labels))
        return [kept for made in found if parts.site.has(made) and (kept := _kept(made)) is not None]

    async def remove_copy(self, kept: KeptCopy) -> None:
        where = self.parts.site.namespace_of_tenant(kept.tenant)
        try:
            await self.parts.requests.delete(VOLUME_SNAPSHOTS, where, kept.name, uid=kept.uid)
        except Conflict:
            log.info("volumesnapshot %s is another one by now", kept.name)

    def _is(self, made: Made, owner: Owner, copy: VolumeCopy) -> bool:
        """Return whether an object is a copy of this tenant's files, and not one made later under its name."""
        labels, metadata = made["metadata"].get("labels") or {}, made["metadata"]
        whose = labels.get(manifests.INSTANCE), labels.get(manifests.TENANT)
        return whose == (self.parts.site.instance, owner[0]) and metadata["uid"] == copy.uid

    async def _create(self, wanted: Made) -> None:
        try:
            await self.parts.requests.create(VOLUME_SNAPSHOTS, wanted["metadata"]["namespace"], wanted)
        except Conflict:
            log.info("volumesnapshot %s was made by an earlier attempt", wanted["metadata"]["name"])

    async def _awaited(self, wanted: Made, what: str, limit_s: float) -> Made:
        """Return a VolumeSnapshot once it is "taken", or "ready to use". Raises SandboxUnavailable."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_LOOK_S
        began_s = loop.time()
        failing_since_s: float | None = None
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        while True:
            found = await self.parts.requests.get(VOLUME_SNAPSHOTS, namespace, name)
            if found is None or found["metadata"].get("deletionTimestamp"):
                raise SandboxUnavailable("the copy of the volume was deleted while it was taken")
            status = found.get("status") or {}
            if status.get("readyToUse") is True or (what == "taken" and status.get("creationTime")):
                return found
            said, now_s = plain_text(str((status.get("error") or {}).get("message") or ""))[:_SHOWN], loop.time()
            failing_since_s = (failing_since_s or now_s) if said else None
            if failing_since_s is not None and now_s - failing_since_s >= _FAILING_S:
                raise SandboxUnavailable(f"the cluster cannot copy the volume: {said}")
            if now_s - began_s > limit_s:
                raise SandboxUnavailable(
                    f"the copy of the volume was not {what} within {limit_s:.0f} s{f': {said}' if said else ''}; see "
                    f"whether the cluster's snapshot controller and the driver of VolumeSnapshotClass "
                    f"{wanted['spec']['volumeSnapshotClassName']!r} run"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)


def _settles(runtime: str) -> bool:
    """Return whether syncfs() writes all files: gVisor's omits those that its cache of names has dropped."""
    return not runtime.startswith("runsc")


def _refuse_lacking(found: WorkspaceCounts, copy: VolumeCopy) -> None:
    """Raise SandboxUnavailable if a volume lacks what its copy has: some provisioners ignore `dataSource`.

    Of a copy that was taken while something ran in the thread only that is known which no program removes by chance:
    everything. Others may have been removed after they were counted, and before the copy.
    """
    wanted = copy.counts
    lacks = (wanted.files and not found.files) or (wanted.entries > 1 and found.entries <= 1)
    if copy.at_rest:
        lacks = found.entries < wanted.entries or found.files < wanted.files or found.size_bytes < wanted.size_bytes
    if lacks:
        raise SandboxUnavailable(
            f"the volume that the cluster made has {found.files:,} of the copy's {wanted.files:,} files "
            f"({found.size_bytes:,} of {wanted.size_bytes:,} bytes), so the thread's files are unchanged: see whether "
            "the provisioner of the storage class supports dataSource, and its driver's log"
        )


def _kept(made: Made) -> KeptCopy | None:
    metadata = made["metadata"]
    labels = metadata.get("labels") or {}
    tenant, snapshot = labels.get(manifests.TENANT), labels.get(copied_volumes.OF_SNAPSHOT)
    if not tenant or not snapshot:
        return None
    return KeptCopy(str(tenant), str(snapshot), str(metadata["name"]), str(metadata["uid"]))
