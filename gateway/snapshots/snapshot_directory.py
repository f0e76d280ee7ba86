"""SnapshotDirectory: one tenant's snapshots on the disk, and the locks of those who use them.

    <snapshots_dir>/<instance>/<digest of the tenant>/lock, forking
                                                      used         how many bytes the rest takes, between two changes
                                                      snapshots/   manifests
                                                      blobs/       pieces of files

Taking, deleting and sweeping need the exclusive lock, restoring a shared one. The kernel releases it when a process
dies. A snapshot that the database does not list was interrupted: its files are removed by the next sweep, which is due
if `used` is missing, or is about other snapshots.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import heapq
import json
import os
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from gateway.errors import InProgress
from gateway.snapshots.blob_directory import BlobDirectory, disk_errors, on_disk, removed
from gateway.snapshots.snapshot_files import HALF, PIECES, SnapshotFiles, digests_of

_LOCK, _FORKING, _USED = "lock", "forking", "used"
_NO_FILES = (_LOCK, _FORKING, _USED, f"{_USED}{HALF}")
# How long to wait for the lock; the error says when to retry.
LOCK_TIMEOUT_S = 5.0
_RETRY_S = 0.05
_AGAIN_S = 2.0


class SnapshotDirectory:
    """Blocking, for threads, except `alone`, `shared` and `forking`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifests = directory / "snapshots"
        self._blobs = BlobDirectory(directory / "blobs")

    def alone(self, timeout_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Take the exclusive lock on this tenant's snapshots; InProgress while others have it."""
        return self._locked(fcntl.LOCK_EX, timeout_s=timeout_s)

    def shared(self) -> AbstractAsyncContextManager[None]:
        """Take a shared lock to read this tenant's snapshots; InProgress while one is taken or deleted."""
        return self._locked(fcntl.LOCK_SH)

    def forking(self, *, alone: bool = False) -> AbstractAsyncContextManager[None]:
        """Take a shared lock for a fork; `alone` takes it exclusively, to remove the fork of a gateway that died."""
        kind, timeout_s = (fcntl.LOCK_EX, 0.0) if alone else (fcntl.LOCK_SH, None)
        return self._locked(kind, _FORKING, timeout_s=timeout_s)

    @disk_errors
    def begin(self, known: Collection[str]) -> int:
        """Begin a change of a directory that has the known snapshots; return their bytes of disk. Needs the lock."""
        path = self._directory / _USED
        try:
            said = json.loads(path.read_bytes())
            used_bytes = int(said["bytes"]) if said["of"] == _of(known) else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            used_bytes = None
        # Before anything changes: a missing file means that a process died.
        path.unlink(missing_ok=True)
        return self._sweep(known) if used_bytes is None else used_bytes

    @disk_errors
    def end(self, known: Collection[str], used_bytes: int) -> None:
        """End a change: the directory now has exactly these snapshots. Needs the exclusive lock."""
        half = self._directory / f"{_USED}{HALF}"
        half.write_text(json.dumps({"bytes": used_bytes, "of": _of(known)}))
        half.rename(self._directory / _USED)

    @disk_errors
    def remove(self, gone: Collection[str], known: Collection[str]) -> int:
        """Remove snapshots except pieces that known ones share; return the freed bytes. Needs a begun change."""
        pieces: set[bytes] = set()
        freed_bytes = 0
        for id_ in gone:
            files = self.of(id_)
            pieces.update(digests_of(files.pieces))
            freed_bytes += sum(map(removed, (files.manifest, files.pieces, files.metadata)))
        for id_ in known if pieces else ():
            pieces.difference_update(digests_of(self.of(id_).pieces))
        return freed_bytes + self._blobs.remove(pieces)

    def of(self, id_: str) -> SnapshotFiles:
        """Return the files of a snapshot. Writing needs the exclusive lock, reading the shared one."""
        return SnapshotFiles(self._manifests, id_, self._blobs)

    @disk_errors
    def forget_metadata(self, ids: Collection[str]) -> None:
        """Remove the metadata of threads that are gone."""
        for id_ in ids:
            self.of(id_).metadata.unlink(missing_ok=True)

    @disk_errors
    def sweep(self, known: Collection[str]) -> int:
        """Remove all but the known snapshots; return how many bytes of disk are left. Needs the exclusive lock."""
        used_bytes = self._sweep(known)
        self.end(known, used_bytes)
        return used_bytes

    def count(self) -> int:
        return sum(name not in _NO_FILES for _, _, files in os.walk(self._directory) for name in files)

    @disk_errors
    def erase(self) -> None:
        """Remove everything of a deleted tenant. Needs the exclusive lock."""
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def _sweep(self, known: Collection[str]) -> int:
        left_bytes = 0
        kept: list[Iterator[bytes]] = []
        for path in sorted(self._manifests.iterdir()) if self._manifests.exists() else ():
            id_, _, kind = path.name.partition(".")
            if id_ not in known or kind.endswith(HALF):
                path.unlink()
                continue
            left_bytes += on_disk(path.stat().st_size)
            if path.suffix == PIECES:
                kept.append(digests_of(path))
        return left_bytes + self._blobs.sweep(heapq.merge(*kept))

    @asynccontextmanager
    async def _locked(self, kind: int, name: str = _LOCK, *, timeout_s: float | None = None) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
        while (descriptor := self._try_lock(kind, name)) is None:
            if loop.time() > deadline_s:
                raise InProgress(
                    "another snapshot of this tenant is being taken: try again when it is complete", _AGAIN_S
                )
            await asyncio.sleep(_RETRY_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, kind: int, name: str) -> int | None:
        """Return the locked file; None if another process has it, or has just removed it."""
        descriptor = self._opened(name)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        os.close(descriptor)
        return None

    @disk_errors
    def _opened(self, name: str) -> int:
        while True:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed with its tenant just now


def _of(known: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()
