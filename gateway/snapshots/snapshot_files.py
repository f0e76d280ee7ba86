"""One snapshot as objects: its manifest and the digests of its pieces.

    <id>.pieces      the digests, in order, each once: what a sweep keeps
    <id>.metadata    the thread's metadata, compressed JSON; removed with the thread
    <id>.manifest    a line of JSON for each entry, compressed; the last line has their number
    <id>.volume      in place of pieces and manifest: which copy of a volume has the files, which the engine keeps

The manifest, or the name of the copy, is stored last, when everything it refers to is. It never changes after that.
"""

import itertools
import json
import sys
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.errors import Internal, QuotaExceeded, TooLarge
from gateway.snapshots.blobs import BLOB_LIMIT_BYTES, DIGEST_BYTES, Blobs
from gateway.snapshots.objects import Missing, Objects
from sandbox.engines.workspace_archive import PERMISSIONS, Contents, WorkspaceEntry

SNAPSHOTS, PIECES, VOLUME = "snapshots/", ".pieces", ".volume"
_MANIFEST, _METADATA = ".manifest", ".metadata"
# Far more than a thread may have (gateway/runs/checkpoints.py): bounds what is inflated.
_METADATA_LIMIT_BYTES = 64 * 1024 * 1024
# The digests of one snapshot's pieces are in memory while it is written.
_PIECES_LIMIT = 250_000
_READ_BYTES = 64 * 1024
# A sweep reads the digests of all snapshots side by side.
_DIGESTS_BYTES = 4096 * DIGEST_BYTES
# The bytes in memory that wait: pieces that threads hash, compress, store and read, and lines of a manifest. Two whole
# pieces, and many small ones.
_WAITING_BYTES = 2 * BLOB_LIMIT_BYTES + 1024 * 1024
# What a line or a small piece takes at most, with the objects around it.
_LEAST_WAITING_BYTES = 4096
_VERSION = 1
_LEVEL = 1


@dataclass(frozen=True)
class Limits:
    """The limits of a snapshot: bytes and entries of the workspace, and bytes of disk that it may add."""

    size_bytes: int
    stored_bytes: int
    entries: int = _PIECES_LIMIT

    def check(self, entries: int, size_bytes: int) -> None:
        """Raise TooLarge for more entries or bytes."""
        if entries > self.entries:
            raise self.too_many()
        if size_bytes > self.size_bytes:
            raise TooLarge(f"a snapshot has at most {self.size_bytes:,} bytes, as a workspace has; remove some files")

    def too_many(self) -> TooLarge:
        return TooLarge(f"a snapshot has at most {self.entries:,} files; remove some")


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
    """The objects of the snapshot `id_`; blocking, for threads."""

    def __init__(self, objects: Objects, id_: str, blobs: Blobs) -> None:
        self._objects, self._blobs = objects, blobs
        self.manifest, self.pieces, self.metadata, self.volume = (
            f"{SNAPSHOTS}{id_}{kind}" for kind in (_MANIFEST, PIECES, _METADATA, VOLUME)
        )

    def write(self, contents: Contents, limits: Limits, metadata: Mapping[str, str] = MappingProxyType({})) -> Written:
        """Write the snapshot with its thread's metadata (JSON texts by key).

        TooLarge, QuotaExceeded, NoSpace and Unavailable leave none.
        """
        threads = ThreadPoolExecutor(self._objects.threads, thread_name_prefix="snapshot")
        try:
            writing = _Writing(self._blobs, limits, threads)
            manifest = self._packed_manifest(writing, contents, metadata)
            manifest_bytes = self._objects.put(self.manifest, manifest, last=True)
        finally:
            threads.shutdown(cancel_futures=True)
        stored_bytes = writing.stored_bytes + manifest_bytes
        return Written(writing.files, writing.size_bytes, stored_bytes, writing.skipped, writing.stripped)

    def _packed_manifest(self, writing: "_Writing", contents: Contents, metadata: Mapping[str, str]) -> Iterator[bytes]:
        """Store everything but the manifest; yield that."""
        packing = zlib.compressobj(_LEVEL)
        size_bytes = 0
        for line in itertools.chain([{"version": _VERSION}], writing.lines(contents)):
            packed = packing.compress(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")
            size_bytes += len(packed)
            yield packed
        rest = packing.flush()
        yield rest
        for name, data in (
            (self.pieces, b"".join(sorted(writing.digests))),
            (self.metadata, packed_metadata(metadata)),
        ):
            stored_bytes = self._objects.put(name, [data])
            writing.stored_bytes += stored_bytes
        writing.check_quota(self._objects.takes(size_bytes + len(rest)))

    def read(self) -> Contents:
        """Yield the content; Internal if its objects are gone or damaged."""
        wanted = (one for line in self._entries() for one in _pieces(*_entry(line)))
        with closing(self._read_ahead(wanted)) as pieces:
            for line in self._entries():
                entry, digests = _entry(line)
                content = (data for _, data in itertools.islice(pieces, len(digests)))
                yield entry, content
                deque(content, maxlen=0)  # what was not taken

    def read_metadata(self) -> Mapping[str, str] | None:
        """Return the metadata of the snapshot's thread.

        None if it was removed with the thread, Internal if it is damaged.
        """
        try:
            packed = b"".join(self._objects.get(self.metadata))
            found = json.loads(zlib.decompressobj().decompress(packed, _METADATA_LIMIT_BYTES))
            return {str(key): str(value) for key, value in found.items()}
        except Missing:
            return None
        except (zlib.error, ValueError, AttributeError) as error:
            raise damaged() from error

    def check_whole(self) -> None:
        """Raise Internal if anything is gone or damaged; reads everything and compares it with its digests.

        Call it before removing anything that this snapshot is to replace.
        """
        if self._objects.size(self.manifest) is None:
            raise Internal(
                "the snapshot's files are not where this gateway stores snapshots: all gateways must have the same "
                "snapshots_dir, or bucket"
            )
        sizes = {digest: len(data) for digest, data in self._read_ahead(self._distinct())}
        for line in self._entries():
            entry, digests = _entry(line)
            if sum(sizes[digest] for digest in digests) != entry.size_bytes:
                raise damaged()

    def _distinct(self) -> Iterator[tuple[bytes, int]]:
        seen: set[bytes] = set()
        for line in self._entries():
            for digest, size_bytes in _pieces(*_entry(line)):
                if digest not in seen:
                    seen.add(digest)
                    yield digest, size_bytes

    def _read_ahead(self, wanted: Iterable[tuple[bytes, int]]) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield pieces with their digests, in order; threads read what comes next, a few bytes ahead."""
        waiting: deque[tuple[bytes, int, Future[bytes]]] = deque()
        waiting_bytes = 0
        threads = ThreadPoolExecutor(self._objects.threads, thread_name_prefix="snapshot")
        try:
            for digest, size_bytes in itertools.chain(wanted, [(b"", _WAITING_BYTES + 1)]):
                while waiting and waiting_bytes + size_bytes > _WAITING_BYTES:
                    first, its_bytes, reading = waiting.popleft()
                    waiting_bytes -= its_bytes
                    yield first, reading.result()
                if digest:
                    waiting.append((digest, size_bytes, threads.submit(self._blobs.get, digest)))
                    waiting_bytes += size_bytes
        finally:
            threads.shutdown(cancel_futures=True)

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the manifest's entries; Internal if it does not end as it was written."""
        count, whole = 0, False
        for line in _lines(self._objects.get(self.manifest, _READ_BYTES)):  # all of them: the checksum comes last
            if whole:
                raise damaged()
            if "entries" in line:
                whole = line["entries"] == count
                continue
            count += 1
            yield line
        if not whole:
            raise damaged()


def packed_metadata(metadata: Mapping[str, str]) -> bytes:
    """Return the content of the object with a thread's metadata."""
    return zlib.compress(json.dumps(dict(metadata)).encode("ascii"), _LEVEL)


def _entry(line: dict[str, Any]) -> tuple[WorkspaceEntry, list[bytes]]:
    try:
        digests = [bytes.fromhex(digest) for digest in line.pop("pieces")]
        return WorkspaceEntry(**line), digests
    except (KeyError, TypeError, ValueError) as error:
        raise damaged() from error


def _pieces(entry: WorkspaceEntry, digests: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield a file's pieces, and how many bytes each may have in memory, which the manifest need not be right about."""
    size_bytes = max(_LEAST_WAITING_BYTES, min(entry.size_bytes, BLOB_LIMIT_BYTES))
    return ((digest, size_bytes) for digest in digests)


def digests_of(objects: Objects, name: str) -> Iterator[bytes]:
    """Yield the digests of a snapshot's pieces, in order; none if there is no such object."""
    try:
        for part in objects.get(name, _DIGESTS_BYTES):
            yield from (part[begin : begin + DIGEST_BYTES] for begin in range(0, len(part), DIGEST_BYTES))
    except Missing:
        return


class _Writing:
    """What has been taken so far; a few threads hash and compress the pieces, a few at a time."""

    def __init__(self, blobs: Blobs, limits: Limits, threads: Executor) -> None:
        self._blobs = blobs
        self._limits = limits
        self._threads = threads
        # Manifest lines, each with one of its pieces, and with None once the line is complete.
        self._waiting: deque[tuple[dict[str, Any], Future[tuple[bytes, int]] | None, int]] = deque()
        self._waiting_bytes = 0
        self.digests: set[bytes] = set()
        self.entries = self.files = self.size_bytes = self.stored_bytes = self.skipped = self.stripped = 0

    def lines(self, contents: Contents) -> Iterator[dict[str, Any]]:
        """Store the pieces of all entries; yield the lines of the manifest."""
        for entry, content in contents:
            yield from self._take(entry, content)
        yield from self._rest()
        yield {"entries": self.entries}

    def check_quota(self, coming_bytes: int = 0) -> None:
        """Raise QuotaExceeded if what is stored, with what is coming, takes more than it may."""
        if self.stored_bytes + coming_bytes > self._limits.stored_bytes:
            raise quota_exceeded(self._limits.stored_bytes)

    def _take(self, entry: WorkspaceEntry, content: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        """Store an entry unless it is skipped; yield the manifest lines that are complete."""
        limits = self._limits
        # With what is skipped: a daemon that lies may send that without end.
        if len(self.digests) >= _PIECES_LIMIT:
            raise limits.too_many()
        limits.check(self.entries + self.skipped + 1, 0)
        if entry.kind in ("special", "misnamed"):
            self.skipped += 1
            return
        # Before it is read: a file may claim to have more bytes than any disk.
        limits.check(0, self.size_bytes + entry.size_bytes)
        self.stripped += bool(entry.mode & ~PERMISSIONS)
        self.entries += 1
        self.files += entry.kind in ("file", "hardlink")
        self.size_bytes += entry.size_bytes
        line = {**vars(entry), "mode": entry.mode & PERMISSIONS, "pieces": []}
        for piece in _cut(content):
            size_bytes = max(_LEAST_WAITING_BYTES, len(piece))
            yield from self._rest(_WAITING_BYTES - size_bytes)
            self._waiting.append((line, self._threads.submit(self._blobs.put, piece), size_bytes))
            self._waiting_bytes += size_bytes
        size_bytes = _LEAST_WAITING_BYTES + sys.getsizeof(entry.path) + sys.getsizeof(entry.target)
        yield from self._rest(_WAITING_BYTES - size_bytes)
        self._waiting.append((line, None, size_bytes))
        self._waiting_bytes += size_bytes

    def _rest(self, limit_bytes: int = -1) -> Iterator[dict[str, Any]]:
        """Yield complete manifest lines until at most so many bytes wait; below 0, until none do."""
        while self._waiting and self._waiting_bytes > limit_bytes:
            line, putting, size_bytes = self._waiting.popleft()
            self._waiting_bytes -= size_bytes
            if putting is None:
                yield line
            else:
                line["pieces"].append(self._kept(putting))

    def _kept(self, putting: Future[tuple[bytes, int]]) -> str:
        digest, stored = putting.result()
        self.digests.add(digest)
        self.stored_bytes += stored
        self.check_quota()
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


def _lines(packed: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield a manifest's lines after the first; Internal if it cannot be read."""
    begun = b""
    version = None
    try:
        for data in _inflated(packed):
            *whole, begun = (begun + data).split(b"\n")
            for text in whole:
                line = json.loads(text)
                if version is None and (version := line.get("version")) != _VERSION:
                    raise damaged()
                if "version" not in line:
                    yield line
    except (Missing, zlib.error, ValueError, AttributeError) as error:
        raise damaged() from error


def _inflated(parts: Iterator[bytes]) -> Iterator[bytes]:
    inflating = zlib.decompressobj()
    for part in parts:
        packed = part
        while packed:
            yield inflating.decompress(packed, _READ_BYTES)
            packed = inflating.unconsumed_tail
    yield inflating.flush()
    if not inflating.eof:  # so its checksum was not compared
        raise ValueError("the manifest ends early")


def damaged() -> Internal:
    """Return the error for what is not as it was written."""
    return Internal("the snapshot's files are missing or damaged where the gateway stores them: use another snapshot")
