"""SnapshotDirectory: the snapshots of one tenant on the disk, and who may change them.

    <snapshots_dir>/<instance>/<digest of the tenant>/lock, forking
                                                      used         how many bytes the rest takes, when nobody changes it
                                                      snapshots/   manifests
                                                      blobs/       pieces of files

Whoever takes, deletes or sweeps holds the lock alone; who restores holds it with others. The kernel drops it when a
process dies. A snapshot that the database does not list was cut short: what is of it goes with the next sweep, which is
due where `used` is not there, or tells of other snapshots.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import heapq
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import structlog

from gateway.errors import InProgress, NoSpace, Unavailable
from gateway.snapshots import snapshot_files
from gateway.snapshots.blob_directory import BlobDirectory, on_disk
from gateway.snapshots.snapshot_files import Limits, Written
from sandbox.engines.workspace_archive import Contents

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_LOCK, _FORKING, _USED = "lock", "forking", "used"
_NO_FILES = (_LOCK, _FORKING, _USED, f"{_USED}{snapshot_files.HALF}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# How long another's turn is waited for; a caller that comes again is told when.
PATIENCE_S = 5.0
_RETRY_S = 0.05
_AGAIN_S = 2.0


class SnapshotDirectory:
    """Blocks, but for `alone` and `shared`; for threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifests = directory / "snapshots"
        self._blobs = directory / "blobs"

    @asynccontextmanager
    async def alone(self, patience_s: float | None = None) -> AsyncIterator[None]:
        """Be the only one who changes or reads this tenant's snapshots; InProgress while others do."""
        async with self._locked(fcntl.LOCK_EX, patience_s=patience_s):
            yield

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Read this tenant's snapshots, with others who do; InProgress while one is taken or deleted."""
        async with self._locked(fcntl.LOCK_SH):
            yield

    @asynccontextmanager
    async def forking(self, *, alone: bool = False) -> AsyncIterator[None]:
        """Make a thread of another, beside others who do; `alone` is for who removes what such a one left that died."""
        kind, patience_s = (fcntl.LOCK_EX, 0.0) if alone else (fcntl.LOCK_SH, None)
        async with self._locked(kind, _FORKING, patience_s=patience_s):
            yield

    def begin(self, known: Collection[str]) -> int:
        """Begin a change; return how many bytes of disk some snapshots take, and nothing else. The caller is alone."""
        return _told(lambda: self._begin(known))

    def end(self, known: Collection[str], used_bytes: int) -> None:
        """End a change: there are these snapshots now, and nothing else. The caller is alone."""
        _told(lambda: self._end(known, used_bytes))

    def remove(self, gone: Collection[str], known: Collection[str]) -> int:
        """Remove some snapshots, not what others have of them; return how many bytes of disk that freed.

        The caller is alone, and has begun a change.
        """
        return _told(lambda: self._remove(gone, known))

    def write(
        self, id_: str, contents: Contents, limits: Limits, metadata: Mapping[str, str] = MappingProxyType({})
    ) -> Written:
        """Write a snapshot, and what was kept with its thread: JSON texts by their keys. The caller is alone.

        Raises TooLarge, QuotaExceeded, NoSpace, Unavailable.
        """
        blobs = BlobDirectory(self._blobs)
        return _told(lambda: snapshot_files.write(self._manifests, id_, blobs, contents, limits, metadata))

    def metadata(self, id_: str) -> Mapping[str, str] | None:
        """Return what was kept with a snapshot's thread; None where that was removed with the thread."""
        return _told(lambda: snapshot_files.read_metadata(self._manifests, id_))

    def forget_metadata(self, ids: Collection[str]) -> None:
        """Remove what was kept with threads that are gone by now."""
        for id_ in ids:
            _told(partial((self._manifests / f"{id_}{snapshot_files.METADATA}").unlink, missing_ok=True))

    def read(self, id_: str) -> Contents:
        """Yield what a snapshot has; Internal where that is gone or damaged. The caller shares."""
        return snapshot_files.read(self._manifests, id_, BlobDirectory(self._blobs))

    def check_whole(self, id_: str) -> None:
        """Raise Internal where something of a snapshot is gone."""
        _told(lambda: snapshot_files.check_whole(self._manifests, id_, BlobDirectory(self._blobs)))

    def sweep(self, known: Collection[str]) -> int:
        """Remove all but some snapshots; return how many bytes of disk are left. The caller is alone."""

        def work() -> int:
            used_bytes = self._sweep(known)
            self._end(known, used_bytes)
            return used_bytes

        return _told(work)

    def count(self) -> int:
        """Return how many files there are of this tenant."""
        return sum(name not in _NO_FILES for _, _, files in os.walk(self._directory) for name in files)

    def erase(self) -> None:
        """Remove everything, for the tenant is deleted. The caller is alone, and the next one begins anew."""
        if self._directory.exists():
            _told(lambda: shutil.rmtree(self._directory))

    def _begin(self, known: Collection[str]) -> int:
        path = self._directory / _USED
        try:
            said = json.loads(path.read_bytes())
            used_bytes = int(said["bytes"]) if said["of"] == _of(known) else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            used_bytes = None
        # Before anything changes: who finds none knows that somebody died.
        path.unlink(missing_ok=True)
        return self._sweep(known) if used_bytes is None else used_bytes

    def _end(self, known: Collection[str], used_bytes: int) -> None:
        half = self._directory / f"{_USED}{snapshot_files.HALF}"
        half.write_text(json.dumps({"bytes": used_bytes, "of": _of(known)}))
        half.rename(self._directory / _USED)

    def _remove(self, gone: Collection[str], known: Collection[str]) -> int:
        pieces: set[bytes] = set()
        freed_bytes = 0
        for id_ in gone:
            path = self._manifests / f"{id_}{snapshot_files.PIECES}"
            if path.exists():
                pieces.update(snapshot_files.digests_of(path))
            for kind in snapshot_files.KINDS:
                freed_bytes += _removed(self._manifests / f"{id_}{kind}")
        for id_ in known if pieces else ():
            path = self._manifests / f"{id_}{snapshot_files.PIECES}"
            if path.exists():
                pieces.difference_update(snapshot_files.digests_of(path))
        return freed_bytes + BlobDirectory(self._blobs).remove(pieces)

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
    async def _locked(self, kind: int, name: str = _LOCK, *, patience_s: float | None = None) -> AsyncIterator[None]:
        patience_s = PATIENCE_S if patience_s is None else patience_s
        deadline_s = asyncio.get_running_loop().time() + patience_s
        while (descriptor := self._try_lock(kind, name)) is None:
            if asyncio.get_running_loop().time() > deadline_s:
                raise InProgress(
                    "another snapshot of this tenant is being taken: try again when it is complete", _AGAIN_S
                )
            await asyncio.sleep(_RETRY_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, kind: int, name: str) -> int | None:
        """Return the locked file; None where another has it, or has just removed it."""
        descriptor = _told(lambda: self._opened(name))
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return None
        return descriptor

    def _opened(self, name: str) -> int:
        while True:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed with its tenant in that moment


def _of(known: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()


def _removed(path: Path) -> int:
    """Remove a file; return how many bytes of disk it had, 0 where there is none."""
    try:
        size_bytes = on_disk(path.stat().st_size)
        path.unlink()
    except FileNotFoundError:
        return 0
    return size_bytes


def _told(work: Callable[[], _T]) -> _T:
    """Return what work returns; what the disk refuses as an error of the gateway."""
    try:
        return work()
    except OSError as error:
        if error.errno in _FULL:
            why = "the gateway's disk is full, and keeps no more snapshots; delete some"
            raise NoSpace(why, disk="gateway") from error
        log.warning("snapshots_dir cannot be used", path=error.filename, error=error.strerror, errno=error.errno)
        raise Unavailable(f"the gateway's snapshots_dir cannot be used: {error.strerror}; see its log") from error
