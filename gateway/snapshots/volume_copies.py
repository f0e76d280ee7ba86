"""Snapshots whose files the engine keeps, as copies of volumes; here is only which copy that is.

The engine says by itself for which snapshots it has copies. So one without a row is found and removed wherever what a
crash left of other snapshots is: a copy is made before its row, and removed after it.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import ParamSpec, TypeVar

import structlog

from agent.cancellation import to_the_end
from gateway.errors import Internal, TooLarge, Unavailable
from gateway.snapshots.objects import Missing, Objects
from gateway.snapshots.snapshot_files import Limits, SnapshotFiles, Written, damaged, packed_metadata, quota_exceeded
from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.engines.engine import VolumeCopies, VolumeCopy
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import SandboxSpec

_VERSION = 1
# How long the cluster may take to remove what a deleted tenant has, before the erasure hears of it; that tries again.
_GONE_S, _POLL_S = 4.0, 0.2
_BYTES = 64 * 1024
_Asked = ParamSpec("_Asked")
_Value = TypeVar("_Value")
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Copies:
    """The copies of all tenants; `engine` is None where it keeps none."""

    engine: VolumeCopies | None = None

    async def refuse_larger(self, spec: SandboxSpec, quota_bytes: int) -> None:
        """Raise TooLarge if a copy of a thread's volume exceeds the whole quota, so that no removal makes room."""
        if self.engine is None or not self.engine.copies_of(spec):
            return
        size_bytes = await self.engine.volume_bytes(spec)
        # What describes the copy is stored as well, so a quota of the volume's size is too small.
        if size_bytes >= quota_bytes:
            raise _too_large(size_bytes, quota_bytes)

    async def take(
        self, spec: SandboxSpec, id_: str, limits: Limits, quota_bytes: int, write: Callable[[VolumeCopy], Written]
    ) -> Written | None:
        """Copy a thread's files, if its snapshots are copies and it has any, and `write` that, in a thread.

        Raises QuotaExceeded where removing other snapshots may help, TooLarge where it cannot, and SandboxError. A
        sweep then removes the copy.
        """
        if self.engine is None or not self.engine.copies_of(spec):
            return None
        if spec.limits.workspace_bytes > limits.stored_bytes:  # a copy has the size of its volume
            raise quota_exceeded(limits.stored_bytes)

        def check(counts: WorkspaceCounts) -> None:
            limits.check(counts.entries + counts.skipped, counts.size_bytes)

        copy = await self.engine.copy_workspace(spec, id_, check)
        if copy is None:
            return None
        written = await in_thread(write, copy)
        if written.stored_bytes > quota_bytes:
            raise _too_large(written.stored_bytes, quota_bytes)
        if written.stored_bytes > limits.stored_bytes:
            raise quota_exceeded(limits.stored_bytes)
        return written

    async def restore(self, spec: SandboxSpec, copy: VolumeCopy) -> None:
        """Replace a thread's files; raises Internal if the copy is gone, Unavailable and SandboxError."""
        if self.engine is None:
            raise _unreachable()
        if not await self.engine.restore_copy(spec, copy):
            raise Internal("the files of the snapshot are not on this gateway's cluster any more: use another snapshot")

    def refuse_unreachable(self, are_copies: Iterable[bool]) -> None:
        """Raise Unavailable if some snapshots are copies, and could not be removed with their rows. Blocking."""
        if self.engine is None and any(are_copies):
            raise _unreachable()

    async def sweep(self, tenant: str, known: Collection[str], still_locked: Callable[[], None]) -> None:
        """Begin to remove a tenant's copies, a digest, but for those of known snapshots.

        What cannot be removed now is removed next time. `still_locked` raises if the tenant's exclusive lock was lost:
        what was listed before is of no snapshot for ever.
        """
        if self.engine is None:
            return
        try:
            kept = await self.engine.kept_copies(tenant)
            still_locked()
            for one in kept:
                if one.snapshot not in known:
                    await self.engine.remove_copy(one)
        except (SandboxError, Unavailable) as error:
            log.warning("the remains of a snapshot will be removed with the next one", error=str(error))

    async def erase(self, tenant: str) -> None:
        """Remove all copies of a tenant, a digest. Raises SandboxUnavailable while there are some, and SandboxError."""
        if self.engine is None:
            return
        deadline_s = time.monotonic() + _GONE_S
        while kept := await self.engine.kept_copies(tenant):
            if time.monotonic() > deadline_s:
                raise SandboxUnavailable(
                    f"the cluster has not removed {len(kept)} copies of the tenant's volumes: `kubectl describe` of "
                    f"VolumeSnapshot {kept[0].name} says what keeps it"
                )
            for one in kept:
                await self.engine.remove_copy(one)
            await asyncio.sleep(_POLL_S)

    async def count(self, tenant: str) -> int:
        """Return how many copies of a tenant there are, a digest."""
        return 0 if self.engine is None else len(await self.engine.kept_copies(tenant))

    async def tenants(self) -> Collection[str]:
        """Return which tenants have copies, by their digests."""
        try:
            return set() if self.engine is None else {one.tenant for one in await self.engine.kept_copies()}
        except SandboxError as error:
            log.warning("the remains of snapshots will be removed later", error=str(error))
            return set()


def write_copy(objects: Objects, files: SnapshotFiles, copy: VolumeCopy, metadata: Mapping[str, str]) -> Written:
    """Write which copy has the files of a snapshot, with its thread's metadata."""
    metadata_bytes = objects.put(files.metadata, [packed_metadata(metadata)])
    described = json.dumps({"version": _VERSION, **asdict(copy)})
    described_bytes = objects.put(files.volume, [described.encode("ascii")], last=True)
    counts, stored_bytes = copy.counts, copy.stored_bytes + metadata_bytes + described_bytes
    return Written(counts.files, counts.size_bytes, stored_bytes, counts.skipped, counts.stripped)


def read_copy(objects: Objects, name: str) -> VolumeCopy | None:
    """Return which copy has the files of a snapshot; None if they are stored here. Internal if that is damaged."""
    try:
        said = json.loads(b"".join(itertools.islice(objects.get(name, _BYTES), 1)))
        if said["version"] != _VERSION:
            raise damaged()
        counts = WorkspaceCounts(**{key: int(value) for key, value in said["counts"].items()})
        at_rest = said.get("at_rest") is True
        return VolumeCopy(str(said["name"]), str(said["uid"]), int(said["stored_bytes"]), counts, at_rest)
    except Missing:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged() from error


async def in_thread(work: Callable[_Asked, _Value], *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Value:
    """Return the result of `work` in a thread, which always completes before the caller releases its lock."""
    return await to_the_end(asyncio.to_thread(work, *args, **kwargs))


def _too_large(size_bytes: int, quota_bytes: int) -> TooLarge:
    return TooLarge(
        f"snapshot_bytes: this snapshot is a copy of a volume of {size_bytes:,} bytes, which does not fit into the "
        f"tenant's whole quota of {quota_bytes:,}: raise quotas.snapshot_bytes, or lower sandbox.workspace_mib"
    )


def _unreachable() -> Unavailable:
    return Unavailable(
        "the files of this snapshot are a copy of a volume in a cluster, where this gateway's configuration has no "
        "sandbox.kubernetes.snapshot_class: have the operator set it again"
    )
