"""SnapshotDirectory: one tenant's snapshots on the disk, and the locks of those who use them.

    <snapshots_dir>/<instance>/<digest of the tenant>/lock, forking
                                                      used         how many bytes the rest takes, between two changes
                                                      snapshots/   manifests
                                                      blobs/       pieces of files

Taking, deleting and sweeping need the exclusive lock, restoring a shared one. The kernel releases it when a process
dies. A snapshot that the database does not list was interrupted: its files are removed by the next sweep, which is due
if `used` is missing, or is about other snapshots.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import hashlib
import heapq
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar

import structlog

from gateway.errors import InProgress, NoSpace, Unavailable
from gateway.snapshots import snapshot_files
from gateway.snapshots.blob_directory import BlobDirectory, on_disk, removed
from gateway.snapshots.snapshot_files import Limits, Written
from sandbox.engines.workspace_archive import Contents

log = structlog.get_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_LOCK, _FORKING, _USED = "lock", "forking", "used"
_NO_FILES = (_LOCK, _FORKING, _USED, f"{_USED}{snapshot_files.HALF}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# How long to wait for the lock; the error says when to retry.
LOCK_TIMEOUT_S = 5.0
_RETRY_S = 0.05
_AGAIN_S = 2.0


def _on_disk(work: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise the disk's errors as the gateway's."""

    @functools.wraps(work)
    def translated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return work(*args, **kwargs)
        except OSError as error:
            if error.errno in _FULL:
                why = "the gateway's disk is full, and keeps no more snapshots; delete some"
                raise NoSpace(why, disk="gateway") from error
            log.warning("snapshots_dir cannot be used", path=error.filename, error=error.strerror, errno=error.errno)
            raise Unavailable(f"the gateway's snapshots_dir cannot be used: {error.strerror}; see its log") from error

    return translated


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

    @_on_disk
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

    @_on_disk
    def end(self, known: Collection[str], used_bytes: int) -> None:
        """End a change: the directory now has exactly these snapshots. Needs the exclusive lock."""
        half = self._directory / f"{_USED}{snapshot_files.HALF}"
        half.write_text(json.dumps({"bytes": used_bytes, "of": _of(known)}))
        half.rename(self._directory / _USED)

    @_on_disk
    def remove(self, gone: Collection[str], known: Collection[str]) -> int:
        """Remove snapshots except pieces that known ones share; return the freed bytes. Needs a begun change."""
        pieces: set[bytes] = set()
        freed_bytes = 0
        for id_ in gone:
            pieces.update(self._pieces(id_))
            freed_bytes += sum(removed(self._manifests / f"{id_}{kind}") for kind in snapshot_files.KINDS)
        for id_ in known if pieces else ():
            pieces.difference_update(self._pieces(id_))
        return freed_bytes + self._blobs.remove(pieces)

    def _pieces(self, id_: str) -> Iterable[bytes]:
        path = self._manifests / f"{id_}{snapshot_files.PIECES}"
        return snapshot_files.digests_of(path) if path.exists() else ()

    @_on_disk
    def write(
        self, id_: str, contents: Contents, limits: Limits, metadata: Mapping[str, str] = MappingProxyType({})
    ) -> Written:
        """Write a snapshot with its thread's metadata (JSON texts by key). Needs the exclusive lock.

        Raises TooLarge, QuotaExceeded, NoSpace, Unavailable.
        """
        return snapshot_files.write(self._manifests, id_, self._blobs, contents, limits, metadata)

    @_on_disk
    def metadata(self, id_: str) -> Mapping[str, str] | None:
        """Return the metadata of a snapshot's thread; None if it was removed with the thread."""
        return snapshot_files.read_metadata(self._manifests, id_)

    @_on_disk
    def forget_metadata(self, ids: Collection[str]) -> None:
        """Remove the metadata of threads that are gone."""
        for id_ in ids:
            (self._manifests / f"{id_}{snapshot_files.METADATA}").unlink(missing_ok=True)

    def read(self, id_: str) -> Contents:
        """Yield a snapshot's content; Internal if it is gone or damaged. Needs the shared lock."""
        return snapshot_files.read(self._manifests, id_, self._blobs)

    @_on_disk
    def check_whole(self, id_: str) -> None:
        """Raise Internal if any part of a snapshot is gone."""
        snapshot_files.check_whole(self._manifests, id_, self._blobs)

    @_on_disk
    def sweep(self, known: Collection[str]) -> int:
        """Remove all but the known snapshots; return how many bytes of disk are left. Needs the exclusive lock."""
        used_bytes = self._sweep(known)
        self.end(known, used_bytes)
        return used_bytes

    def count(self) -> int:
        """Return how many files this tenant has."""
        return sum(name not in _NO_FILES for _, _, files in os.walk(self._directory) for name in files)

    @_on_disk
    def erase(self) -> None:
        """Remove everything of a deleted tenant. Needs the exclusive lock."""
        if self._directory.exists():
            shutil.rmtree(self._directory)

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

    @_on_disk
    def _opened(self, name: str) -> int:
        while True:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed with its tenant just now


def _of(known: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()
