"""SnapshotDirectory: the snapshots of one tenant on the disk, and who may change them.

    <snapshots_dir>/<instance>/<digest of the tenant>/lock
                                                      snapshots/   manifests
                                                      blobs/       pieces of files

Whoever takes, deletes or sweeps holds the lock alone; who restores holds it with others. The kernel drops it when a
process dies. A snapshot that the database does not list was cut short: what is of it goes with the next sweep.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import heapq
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from gateway.errors import InProgress, NoSpace, Unavailable
from gateway.snapshots import snapshot_files
from gateway.snapshots.blob_directory import BlobDirectory, on_disk
from gateway.snapshots.snapshot_files import Limits, Written
from sandbox.workspace_archive import Contents

_T = TypeVar("_T")
_LOCK = "lock"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# How long another's turn is waited for; a caller that comes again is told when.
_PATIENCE_S = 5.0
_RETRY_S = 0.05
_AGAIN_S = 2.0


class SnapshotDirectory:
    """Blocks, but for `alone` and `shared`; for threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifests = directory / "snapshots"
        self._blobs = directory / "blobs"

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be the only one who changes or reads this tenant's snapshots; InProgress while others do."""
        async with self._locked(fcntl.LOCK_EX):
            yield

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Read this tenant's snapshots, with others who do; InProgress while one is taken or deleted."""
        async with self._locked(fcntl.LOCK_SH):
            yield

    def write(self, id_: str, contents: Contents, limits: Limits) -> Written:
        """Write a snapshot; TooLarge, QuotaExceeded, NoSpace, Unavailable. The caller is alone."""
        return _told(lambda: snapshot_files.write(self._manifests, id_, BlobDirectory(self._blobs), contents, limits))

    def read(self, id_: str) -> Contents:
        """Yield what a snapshot has; Internal where that is gone or damaged. The caller shares."""
        return snapshot_files.read(self._manifests, id_, BlobDirectory(self._blobs))

    def check_whole(self, id_: str) -> None:
        """Raise Internal where something of a snapshot is gone."""
        _told(lambda: snapshot_files.check_whole(self._manifests, id_, BlobDirectory(self._blobs)))

    def sweep(self, known: Collection[str]) -> int:
        """Remove all but some snapshots; return how many bytes of disk are left. The caller is alone."""
        return _told(lambda: self._sweep(known))

    def count(self) -> int:
        """Return how many files there are of this tenant."""
        return sum(name != _LOCK for _, _, files in os.walk(self._directory) for name in files)

    def erase(self) -> None:
        """Remove everything, for the tenant is deleted. The caller is alone, and the next one begins anew."""
        if self._directory.exists():
            _told(lambda: shutil.rmtree(self._directory))

    def _sweep(self, known: Collection[str]) -> int:
        left_bytes = 0
        kept: list[Iterator[bytes]] = []
        for path in sorted(self._manifests.iterdir()) if self._manifests.exists() else ():
            id_, _, kind = path.name.partition(".")
            if id_ not in known or kind.endswith(snapshot_files.HALF):
                path.unlink()
                continue
            left_bytes += on_disk(path.stat().st_size)
            if path.suffix == snapshot_files.PIECES:
                kept.append(snapshot_files.digests_of(path))
        return left_bytes + BlobDirectory(self._blobs).sweep(heapq.merge(*kept))

    @asynccontextmanager
    async def _locked(self, kind: int) -> AsyncIterator[None]:
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while (descriptor := self._try_lock(kind)) is None:
            if asyncio.get_running_loop().time() > deadline_s:
                raise InProgress("another snapshot of this tenant is under way; ask again when it is there", _AGAIN_S)
            await asyncio.sleep(_RETRY_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, kind: int) -> int | None:
        """Return the locked file; None where another has it, or has just removed it."""
        descriptor = _told(self._opened)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return None
        return descriptor

    def _opened(self) -> int:
        while True:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed with its tenant in that moment


def _told(work: Callable[[], _T]) -> _T:
    """Return what work returns; what the disk refuses as an error of the gateway."""
    try:
        return work()
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace("the gateway's disk is full, and keeps no more snapshots; delete some") from error
        raise Unavailable(f"the gateway's snapshots_dir cannot be used: {error.strerror}; see its log") from error
