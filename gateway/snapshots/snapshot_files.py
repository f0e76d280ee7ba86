"""One snapshot as files: its manifest and the digests of its pieces.

    <id>.pieces      the digests, in order, each once: what a sweep keeps
    <id>.manifest    a line of JSON for each entry, compressed; the last says how many there were

The manifest gets its name last, when all that it points to is on the disk. Neither is ever changed after that.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gateway.errors import Internal, QuotaExceeded, TooLarge
from gateway.snapshots.blob_directory import BLOB_LIMIT_BYTES, DIGEST_BYTES, BlobDirectory, on_disk
from sandbox.workspace_archive import PERMISSIONS, Contents, WorkspaceEntry

MANIFEST, PIECES, HALF = ".manifest", ".pieces", ".half"
# The digests of the pieces of one snapshot are in memory while it is written.
_PIECES_LIMIT = 250_000
_READ_BYTES = 64 * 1024
_VERSION = 1
_LEVEL = 1


@dataclass(frozen=True)
class Limits:
    """What one snapshot may have: bytes and entries of the workspace, and bytes of disk that it may add."""

    size_bytes: int
    stored_bytes: int
    entries: int = _PIECES_LIMIT


@dataclass(frozen=True)
class Written:
    """What a snapshot has. `skipped` is what cannot be copied (devices, pipes, sockets), `stripped` lost set-id bits.

    `stored_bytes` is what it added on the disk.
    """

    files: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    skipped: int = 0
    stripped: int = 0


def write(directory: Path, id_: str, blobs: BlobDirectory, contents: Contents, limits: Limits) -> Written:
    """Write a snapshot, from the beginning each time; OSError, TooLarge, QuotaExceeded, NoSpace leave none."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    manifest = directory / f"{id_}{MANIFEST}"
    half = directory / f"{id_}{MANIFEST}{HALF}"
    pieces = directory / f"{id_}{PIECES}"
    with half.open("wb") as file:
        lines = _Lines(file)
        lines.write({"version": _VERSION})
        writing = _Writing(blobs, limits)
        for entry, content in contents:
            told = writing.taken(entry, content)
            if told is not None:
                lines.write(told)
        lines.write({"entries": writing.entries})
        lines.end()
    pieces.write_bytes(b"".join(sorted(writing.digests)))
    stored = writing.stored_bytes + on_disk(half.stat().st_size) + on_disk(pieces.stat().st_size)
    _sync_disk(directory)
    half.rename(manifest)
    _sync(directory)
    return Written(writing.files, writing.size_bytes, stored, writing.skipped, writing.stripped)


def read(directory: Path, id_: str, blobs: BlobDirectory) -> Contents:
    """Yield what a snapshot has; Internal where its files are gone or damaged."""
    for count, line in enumerate(_lines(directory / f"{id_}{MANIFEST}")):
        if "entries" in line:
            if line["entries"] != count:
                break
            return
        digests = [bytes.fromhex(digest) for digest in line.pop("pieces")]
        yield WorkspaceEntry(**line), (blobs.get(digest) for digest in digests)
    raise _damaged()


def check_whole(directory: Path, id_: str, blobs: BlobDirectory) -> None:
    """Raise Internal where a piece is gone: before anything is removed for the sake of this snapshot."""
    if not (directory / f"{id_}{MANIFEST}").exists():
        raise Internal("the snapshot's files are not in this gateway's snapshots_dir: all gateways must have the same")
    if not all(blobs.has(digest) for digest in digests_of(directory / f"{id_}{PIECES}")):
        raise _damaged()


def digests_of(path: Path) -> Iterator[bytes]:
    """Yield the digests of a snapshot's pieces, in order."""
    with path.open("rb") as file:
        while digest := file.read(DIGEST_BYTES):
            yield digest


class _Writing:
    """What has been taken so far."""

    def __init__(self, blobs: BlobDirectory, limits: Limits) -> None:
        self._blobs = blobs
        self._limits = limits
        self.digests: set[bytes] = set()
        self.entries = self.files = self.size_bytes = self.stored_bytes = self.skipped = self.stripped = 0

    def taken(self, entry: WorkspaceEntry, content: Iterator[bytes]) -> dict[str, Any] | None:
        """Keep an entry; return its line of the manifest, None where it is skipped."""
        if entry.kind in ("special", "misnamed"):
            self.skipped += 1
            return None
        limits = self._limits
        if self.entries >= limits.entries or len(self.digests) >= _PIECES_LIMIT:
            raise TooLarge(f"a snapshot has at most {limits.entries:,} files; remove some")
        # Before it is read: a file may say that it has more bytes than any disk.
        if self.size_bytes + entry.size_bytes > limits.size_bytes:
            raise TooLarge(f"a snapshot has at most {limits.size_bytes:,} bytes, as a workspace has; remove some files")
        self.stripped += bool(entry.mode & ~PERMISSIONS)
        self.entries += 1
        self.files += entry.kind in ("file", "hardlink")
        self.size_bytes += entry.size_bytes
        pieces = [self._kept(piece) for piece in _cut(content)]
        return {**asdict(entry), "mode": entry.mode & PERMISSIONS, "pieces": [digest.hex() for digest in pieces]}

    def _kept(self, piece: bytes) -> bytes:
        digest, stored = self._blobs.put(piece)
        self.digests.add(digest)
        self.stored_bytes += stored
        if self.stored_bytes > self._limits.stored_bytes:
            raise quota_exceeded(self._limits.stored_bytes)
        return digest


class _Lines:
    """Lines of JSON, compressed as they are written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packing = zlib.compressobj(_LEVEL)

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(self._packing.compress(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"))

    def end(self) -> None:
        self._file.write(self._packing.flush())


def quota_exceeded(left_bytes: int) -> QuotaExceeded:
    """Return the error of a snapshot that is too large for what is left of the quota."""
    return QuotaExceeded(
        f"snapshot_bytes: this snapshot would take more than the {left_bytes:,} bytes that are left of the tenant's "
        "quota; delete others (`airlock sandbox snapshots --delete ID`)",
        quota="snapshot_bytes",
    )


def _cut(content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield content in pieces of one length, but for the last: the same file gives the same pieces."""
    held: list[bytes] = []
    held_bytes = 0
    for data in content:
        rest = memoryview(data)
        while rest:
            part = rest[: BLOB_LIMIT_BYTES - held_bytes]
            held.append(bytes(part))
            held_bytes += len(part)
            rest = rest[len(part) :]
            if held_bytes == BLOB_LIMIT_BYTES:
                yield b"".join(held)
                held, held_bytes = [], 0
    if held:
        yield b"".join(held)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a manifest after its first; Internal for one that cannot be read."""
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
    except (OSError, zlib.error, ValueError) as error:
        raise _damaged() from error


def _inflated(path: Path) -> Iterator[bytes]:
    inflating = zlib.decompressobj()
    with path.open("rb") as file:
        while packed := file.read(_READ_BYTES):
            while packed:
                yield inflating.decompress(packed, _READ_BYTES)
                packed = inflating.unconsumed_tail
    yield inflating.flush()


def _damaged() -> Internal:
    return Internal("the snapshot's files are gone or damaged on the gateway's disk; take another")


def _sync_disk(directory: Path) -> None:
    """Have all that was written to a directory's file system on the disk itself: at once, not thousands of times."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
