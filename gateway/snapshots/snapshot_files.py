"""One snapshot as files: its manifest and the digests of its pieces.

    <id>.pieces      the digests, in order, each once: what a sweep keeps
    <id>.metadata    the thread's metadata, compressed JSON; removed with the thread
    <id>.manifest    a line of JSON for each entry, compressed; the last line has their number

The manifest gets its name last, when everything it refers to is on the disk. It never changes after that.
"""

import ctypes
import json
import os
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.errors import Internal, QuotaExceeded, TooLarge
from gateway.snapshots.blob_directory import BLOB_LIMIT_BYTES, DIGEST_BYTES, BlobDirectory, disk_errors, on_disk
from sandbox.engines.workspace_archive import PERMISSIONS, Contents, WorkspaceEntry

_MANIFEST, PIECES, _METADATA, HALF = ".manifest", ".pieces", ".metadata", ".half"
# Far more than a thread may have (gateway/runs/checkpoints.py): bounds what is inflated.
_METADATA_LIMIT_BYTES = 64 * 1024 * 1024
# The digests of one snapshot's pieces are in memory while it is written.
_PIECES_LIMIT = 250_000
_READ_BYTES = 64 * 1024
# The bytes that threads hash and compress at a time, all in memory.
_WAITING_BYTES = 2 * BLOB_LIMIT_BYTES
_THREADS = min(4, os.cpu_count() or 1)
_VERSION = 1
_LEVEL = 1


@dataclass(frozen=True)
class Limits:
    """The limits of a snapshot: bytes and entries of the workspace, and bytes of disk that it may add."""

    size_bytes: int
    stored_bytes: int
    entries: int = _PIECES_LIMIT


@dataclass(frozen=True)
class Written:
    """A written snapshot; `stored_bytes` is what it added on the disk.

    `skipped` entries cannot be copied (devices, pipes, sockets), `stripped` ones lost set-id bits.
    """

    files: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    skipped: int = 0
    stripped: int = 0


class SnapshotFiles:
    """The files of the snapshot `id_` in the directory of manifests; blocking, for threads."""

    def __init__(self, directory: Path, id_: str, blobs: BlobDirectory) -> None:
        self._directory = directory
        self._blobs = blobs
        self.manifest, self.pieces, self.metadata = (
            directory / f"{id_}{kind}" for kind in (_MANIFEST, PIECES, _METADATA)
        )

    @disk_errors
    def write(self, contents: Contents, limits: Limits, metadata: Mapping[str, str] = MappingProxyType({})) -> Written:
        """Write the snapshot with its thread's metadata (JSON texts by key).

        TooLarge, QuotaExceeded, NoSpace and Unavailable leave none.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        half = self.manifest.with_name(f"{self.manifest.name}{HALF}")
        with half.open("wb") as file:
            packing = zlib.compressobj(_LEVEL)

            def write_line(line: dict[str, Any]) -> None:
                file.write(packing.compress(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"))

            write_line({"version": _VERSION})
            threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshot")
            try:
                writing = _Writing(self._blobs, limits, threads)
                for entry, content in contents:
                    for line in writing.take(entry, content):
                        write_line(line)
                for line in writing.rest():
                    write_line(line)
            finally:
                threads.shutdown(cancel_futures=True)
            write_line({"entries": writing.entries})
            file.write(packing.flush())
        self.pieces.write_bytes(b"".join(sorted(writing.digests)))
        self.metadata.write_bytes(zlib.compress(json.dumps(dict(metadata)).encode("ascii"), _LEVEL))
        files = (half, self.pieces, self.metadata)
        stored = writing.stored_bytes + sum(on_disk(path.stat().st_size) for path in files)
        if stored > limits.stored_bytes:
            raise quota_exceeded(limits.stored_bytes)
        _publish(half, self.manifest)
        return Written(writing.files, writing.size_bytes, stored, writing.skipped, writing.stripped)

    def read(self) -> Contents:
        """Yield the content; Internal if its files are gone or damaged."""
        for line in _entries(self.manifest):
            entry, digests = _entry(line)
            yield entry, (self._blobs.get(digest) for digest in digests)

    def read_metadata(self) -> Mapping[str, str] | None:
        """Return the metadata of the snapshot's thread.

        None if it was removed with the thread, Internal if it is damaged.
        """
        try:
            packed = self.metadata.read_bytes()
            found = json.loads(zlib.decompressobj().decompress(packed, _METADATA_LIMIT_BYTES))
            return {str(key): str(value) for key, value in found.items()}
        except FileNotFoundError:
            return None
        except (OSError, zlib.error, ValueError, AttributeError) as error:
            raise _damaged() from error

    @disk_errors
    def check_whole(self) -> None:
        """Raise Internal if anything is gone or damaged; reads everything and compares it with its digests.

        Call it before removing anything that this snapshot is to replace.
        """
        if not self.manifest.exists():
            raise Internal(
                "the snapshot's files are not in this gateway's snapshots_dir: all gateways must have the same"
            )
        sizes: dict[bytes, int] = {}
        for line in _entries(self.manifest):
            entry, digests = _entry(line)
            for digest in digests:
                if digest not in sizes:
                    sizes[digest] = len(self._blobs.get(digest))
            if sum(sizes[digest] for digest in digests) != entry.size_bytes:
                raise _damaged()


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a manifest's entries; Internal if it does not end as it was written."""
    count, whole = 0, False
    for line in _lines(path):  # all of them, since the checksum comes last
        if whole:
            raise _damaged()
        if "entries" in line:
            whole = line["entries"] == count
            continue
        count += 1
        yield line
    if not whole:
        raise _damaged()


def _entry(line: dict[str, Any]) -> tuple[WorkspaceEntry, list[bytes]]:
    try:
        digests = [bytes.fromhex(digest) for digest in line.pop("pieces")]
        return WorkspaceEntry(**line), digests
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged() from error


def digests_of(path: Path) -> Iterator[bytes]:
    """Yield the digests of a snapshot's pieces, in order; none if there is no such file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while digest := file.read(DIGEST_BYTES):
            yield digest


class _Writing:
    """What has been taken so far; a few threads hash and compress the pieces, a few at a time."""

    def __init__(self, blobs: BlobDirectory, limits: Limits, threads: Executor) -> None:
        self._blobs = blobs
        self._limits = limits
        self._threads = threads
        # Manifest lines, each with one of its pieces, and with None once the line is complete.
        self._waiting: deque[tuple[dict[str, Any], Future[tuple[bytes, int]] | None, int]] = deque()
        self._waiting_bytes = 0
        self.digests: set[bytes] = set()
        self.entries = self.files = self.size_bytes = self.stored_bytes = self.skipped = self.stripped = 0

    def take(self, entry: WorkspaceEntry, content: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        """Store an entry unless it is skipped; yield the manifest lines that are complete."""
        if entry.kind in ("special", "misnamed"):
            self.skipped += 1
            return
        limits = self._limits
        if self.entries >= limits.entries or len(self.digests) >= _PIECES_LIMIT:
            raise TooLarge(f"a snapshot has at most {limits.entries:,} files; remove some")
        # Before it is read: a file may claim to have more bytes than any disk.
        if self.size_bytes + entry.size_bytes > limits.size_bytes:
            raise TooLarge(f"a snapshot has at most {limits.size_bytes:,} bytes, as a workspace has; remove some files")
        self.stripped += bool(entry.mode & ~PERMISSIONS)
        self.entries += 1
        self.files += entry.kind in ("file", "hardlink")
        self.size_bytes += entry.size_bytes
        line = {**vars(entry), "mode": entry.mode & PERMISSIONS, "pieces": []}
        for piece in _cut(content):
            yield from self.rest(_WAITING_BYTES - len(piece))
            self._waiting.append((line, self._threads.submit(self._blobs.put, piece), len(piece)))
            self._waiting_bytes += len(piece)
        self._waiting.append((line, None, 0))

    def rest(self, limit_bytes: int = -1) -> Iterator[dict[str, Any]]:
        """Yield complete manifest lines until at most so many bytes are in progress; below 0, until none are."""
        while self._waiting and self._waiting_bytes > limit_bytes:
            line, putting, size_bytes = self._waiting.popleft()
            if putting is None:
                yield line
            else:
                self._waiting_bytes -= size_bytes
                line["pieces"].append(self._kept(putting))

    def _kept(self, putting: Future[tuple[bytes, int]]) -> str:
        digest, stored = putting.result()
        self.digests.add(digest)
        self.stored_bytes += stored
        if self.stored_bytes > self._limits.stored_bytes:
            raise quota_exceeded(self._limits.stored_bytes)
        return digest.hex()


def quota_exceeded(left_bytes: int) -> QuotaExceeded:
    """Return the error for a snapshot that exceeds what is left of the quota."""
    return QuotaExceeded(
        f"snapshot_bytes: this snapshot would need more than the {left_bytes:,} bytes left of the tenant's quota: "
        "delete others (`airlock sandbox snapshots --delete ID`)",
        quota="snapshot_bytes",
    )


def _cut(content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield content in pieces of one length, except the last: equal files give equal pieces."""
    parts: list[bytes] = []
    size_bytes = 0
    for data in content:
        rest = memoryview(data)
        while rest:
            part = rest[: BLOB_LIMIT_BYTES - size_bytes]
            parts.append(bytes(part))
            size_bytes += len(part)
            rest = rest[len(part) :]
            if size_bytes == BLOB_LIMIT_BYTES:
                yield b"".join(parts)
                parts, size_bytes = [], 0
    if parts:
        yield b"".join(parts)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a manifest's lines after the first; Internal if it cannot be read."""
    begun = b""
    version = None
    try:
        for data in _inflated(path):
            *whole, begun = (begun + data).split(b"\n")
            for text in whole:
                line = json.loads(text)
                if version is None and (version := line.get("version")) != _VERSION:
                    raise _damaged()
                if "version" not in line:
                    yield line
    except (OSError, zlib.error, ValueError, AttributeError) as error:
        raise _damaged() from error


def _inflated(path: Path) -> Iterator[bytes]:
    inflating = zlib.decompressobj()
    with path.open("rb") as file:
        while packed := file.read(_READ_BYTES):
            while packed:
                yield inflating.decompress(packed, _READ_BYTES)
                packed = inflating.unconsumed_tail
    yield inflating.flush()
    if not inflating.eof:  # so its checksum was not compared
        raise ValueError("the manifest ends early")


def _damaged() -> Internal:
    return Internal("the snapshot's files are missing or damaged on the gateway's disk: use another snapshot")


def _publish(half: Path, manifest: Path) -> None:
    """Give a manifest its name, once everything written to its file system is on the disk."""
    descriptor = os.open(manifest.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # At once instead of file by file.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        half.rename(manifest)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
