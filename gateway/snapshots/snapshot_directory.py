"""SnapshotDirectory: one tenant's snapshots, and the locks of those who use them.

    <snapshots_dir or bucket>/<instance>/<digest of the tenant>/used         how many bytes the rest takes, between two
                                                                             changes
                                                                snapshots/   manifests, or names of copies of volumes
                                                                blobs/       pieces of files

Taking, deleting and sweeping need the exclusive lock, restoring a shared one. A snapshot that the database does not
list was interrupted: its files are removed by the next sweep, which is due if `used` is missing, or is about other
snapshots.
"""

import hashlib
import heapq
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager

from gateway.errors import Internal
from gateway.snapshots.blobs import Blobs, removed
from gateway.snapshots.locks import FORKING, LOCK, Locks
from gateway.snapshots.objects import Missing, Objects
from gateway.snapshots.snapshot_files import PIECES, SNAPSHOTS, VOLUME, SnapshotFiles, Written, digests_of
from gateway.snapshots.volume_copies import read_copy, write_copy
from sandbox.engines.engine import VolumeCopy

_USED = "used"


class SnapshotDirectory:
    """Blocking, for threads, except `alone`, `shared` and `forking`."""

    def __init__(self, objects: Objects, locks: Locks) -> None:
        self._objects, self._locks = objects, locks
        self._blobs = Blobs(objects)

    @property
    def lock(self) -> str:
        """The exclusive lock, for the transaction that depends on it; "" if it cannot be lost."""
        return self._locks.held

    def still_locked(self) -> None:
        """Raise Unavailable if the exclusive lock was lost."""
        self._locks.check(0.0)

    def alone(self, timeout_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Take the exclusive lock on this tenant's snapshots; InProgress while others have it."""
        return self._locks.locked(LOCK, exclusive=True, timeout_s=timeout_s)

    def inherited(self) -> AbstractAsyncContextManager[None]:
        """Take the exclusive lock, and wait long enough for that of a process that was killed to end."""
        return self.alone(self._locks.inherited_s)

    def shared(self) -> AbstractAsyncContextManager[None]:
        """Take a shared lock to read this tenant's snapshots; InProgress while one is taken or deleted."""
        return self._locks.locked(LOCK)

    def forking(self) -> AbstractAsyncContextManager[None]:
        """Take a shared lock for a fork."""
        return self._locks.locked(FORKING)

    def not_forking(self, *, wait: bool) -> AbstractAsyncContextManager[None]:
        """Take that lock exclusively, to remove forks of gateways that died; `wait` until their locks have ended."""
        return self._locks.locked(FORKING, exclusive=True, timeout_s=self._locks.inherited_s if wait else 0.0)

    def begin(self, known: Collection[str]) -> int:
        """Begin a change of a directory that has the known snapshots; return their bytes. Needs the exclusive lock."""
        try:
            said = json.loads(b"".join(self._objects.get(_USED)))
            used_bytes = int(said["bytes"]) if said["of"] == _of(known) else None
        except (Missing, ValueError, TypeError, KeyError):
            used_bytes = None
        # Before anything changes: if it is missing, a process died.
        self._objects.remove([_USED])
        return self._sweep(known) if used_bytes is None else used_bytes

    def end(self, known: Collection[str], used_bytes: int) -> None:
        """End a change: the directory now has exactly these snapshots. Needs the exclusive lock."""
        self._objects.put(_USED, [json.dumps({"bytes": used_bytes, "of": _of(known)}).encode("ascii")])

    def remove(self, gone: Collection[str], known: Collection[str]) -> int:
        """Remove snapshots except pieces that known ones share; return the freed bytes. Needs a begun change."""
        pieces: set[bytes] = set()
        freed_bytes = 0
        for id_ in gone:
            files = self.of(id_)
            pieces.update(digests_of(self._objects, files.pieces))
            freed_bytes += self._bytes_of_copy(files.volume)
            freed_bytes += removed(self._objects, (files.manifest, files.pieces, files.metadata, files.volume))
        for id_ in known if pieces else ():
            pieces.difference_update(digests_of(self._objects, self.of(id_).pieces))
        return freed_bytes + self._blobs.remove(pieces)

    def of(self, id_: str) -> SnapshotFiles:
        """Return the files of a snapshot. Writing needs the exclusive lock, reading the shared one."""
        return SnapshotFiles(self._objects, id_, self._blobs)

    def write_copy(self, id_: str, copy: VolumeCopy, metadata: Mapping[str, str]) -> Written:
        """Write which copy of a volume has a snapshot's files. Needs the exclusive lock."""
        return write_copy(self._objects, self.of(id_), copy, metadata)

    def copy_of(self, id_: str) -> VolumeCopy | None:
        """Return which copy of a volume has a snapshot's files; None if they are here. Internal if that is damaged."""
        return read_copy(self._objects, self.of(id_).volume)

    def is_copy(self, id_: str) -> bool:
        """Return whether a copy of a volume has a snapshot's files."""
        return self._objects.size(self.of(id_).volume) is not None

    def copies(self) -> Iterator[bool]:
        """Yield whether each object of a snapshot is the name of a copy."""
        return (name.endswith(VOLUME) for name, _ in self._objects.names(SNAPSHOTS))

    def forget_metadata(self, ids: Collection[str]) -> None:
        """Remove the metadata of threads that are gone."""
        self._objects.remove([self.of(id_).metadata for id_ in ids])

    def sweep(self, known: Collection[str]) -> int:
        """Remove all but the known snapshots; return how many bytes are left. Needs the exclusive lock."""
        used_bytes = self._sweep(known)
        self.end(known, used_bytes)
        return used_bytes

    def count(self) -> int:
        return sum(1 for name, _ in self._objects.names() if "/" in name)

    def erase(self) -> None:
        """Remove everything of a deleted tenant. Needs the exclusive lock."""
        self._objects.erase()

    def _sweep(self, known: Collection[str]) -> int:
        self._objects.tidy()
        left_bytes = 0
        kept: list[Iterator[bytes]] = []
        gone: list[str] = []
        for name, size_bytes in self._objects.names(SNAPSHOTS):
            id_, _, _ = name.removeprefix(SNAPSHOTS).partition(".")
            if id_ not in known:
                gone.append(name)
                continue
            left_bytes += size_bytes
            if name.endswith(PIECES):
                kept.append(digests_of(self._objects, name))
            elif name.endswith(VOLUME):
                left_bytes += self._bytes_of_copy(name)
        self._objects.remove(gone)
        return left_bytes + self._blobs.sweep(heapq.merge(*kept))

    def _bytes_of_copy(self, name: str) -> int:
        """Return how many bytes the copy of a volume takes that an object describes; 0 if that is not known."""
        try:
            copy = read_copy(self._objects, name)
        except Internal:
            return 0
        return 0 if copy is None else copy.stored_bytes


def _of(known: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()
