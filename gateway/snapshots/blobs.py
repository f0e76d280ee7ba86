"""Blobs: pieces of files by their SHA-256, each stored once, compressed if that helps.

What is read is compared with its name, so a disk or a bucket that loses bytes causes an error, never a wrong file.
"""

import hashlib
import itertools
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from gateway.errors import Internal
from gateway.snapshots.objects import Missing, Objects

BLOB_LIMIT_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 32
_BLOBS = "blobs/"
_RAW, _DEFLATED = b"r", b"z"
_LEVEL = 1
# A sample of a piece is compressed first: unless it shrinks by a tenth, the piece is stored as it is.
_SAMPLE_BYTES = 4 * 1024
_WORTH = 0.9
# How many pieces are removed at a time.
_BATCH = 1000


class Blobs:
    """Blocking; for threads, several at once. One process at a time writes and sweeps, others may read."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        # The pieces that a thread is writing, so that no second one does.
        self._writing: set[bytes] = set()

    def put(self, data: bytes) -> tuple[bytes, int]:
        """Store a piece of at most BLOB_LIMIT_BYTES; return its digest, and how many bytes that took.

        If another thread is writing the same piece, its name exists once that is done.
        """
        digest = hashlib.sha256(data).digest()
        name = _name(digest)
        with self._lock:
            if digest in self._writing:
                return digest, 0
            self._writing.add(digest)
        try:
            if self._objects.size(name) is not None:
                return digest, 0
            return digest, self._objects.put(name, _packed(data))
        finally:
            with self._lock:
                self._writing.discard(digest)

    def get(self, digest: bytes) -> bytes:
        """Return a piece; Internal if it is gone or damaged."""
        try:
            data = _unpacked(b"".join(itertools.islice(self._objects.get(_name(digest)), 1)))
        except (Missing, zlib.error, ValueError):
            data = None
        if data is None or hashlib.sha256(data).digest() != digest:
            raise Internal(f"piece {digest.hex()[:12]} of the snapshot is gone or damaged where the gateway stores it")
        return data

    def sweep(self, kept: Iterable[bytes]) -> int:
        """Remove every piece except those of the digests, which come in order.

        Return how many bytes are left.
        """
        wanted = iter(kept)
        following = next(wanted, None)
        left_bytes = 0
        gone: list[str] = []
        for name, size_bytes in self._objects.names(_BLOBS):
            digest = _digest_of(name)
            while digest is not None and following is not None and following < digest:
                following = next(wanted, None)
            if digest is None or digest != following:
                gone.append(name)
            else:
                left_bytes += size_bytes
            if len(gone) == _BATCH:
                self._objects.remove(gone)
                gone = []
        self._objects.remove(gone)
        return left_bytes

    def remove(self, digests: Collection[bytes]) -> int:
        """Remove pieces; return how many bytes that freed. A missing one is no error."""
        return removed(self._objects, sorted(map(_name, digests)))


def removed(objects: Objects, names: Collection[str]) -> int:
    """Remove objects; return how many bytes they took. A missing one took none."""
    with ThreadPoolExecutor(objects.threads) as threads:
        freed_bytes = sum(size_bytes or 0 for size_bytes in threads.map(objects.size, names))
    objects.remove(names)
    return freed_bytes


def _packed(data: bytes) -> Iterator[bytes]:
    # From the middle: many compressed formats begin with a compressible header.
    begin = max(0, (len(data) - _SAMPLE_BYTES) // 2)
    sample = data[begin : begin + _SAMPLE_BYTES]
    deflated = zlib.compress(sample, _LEVEL)
    if len(deflated) > _WORTH * len(sample):
        yield _RAW
        yield data
    else:
        yield _DEFLATED
        yield deflated if len(data) == len(sample) else zlib.compress(data, _LEVEL)


def _unpacked(kept: bytes) -> bytes:
    if kept[:1] == _RAW:
        return kept[1:]
    if kept[:1] != _DEFLATED:
        raise ValueError(kept[:1])
    # The stored bytes are trusted only after the digest is checked: inflate no more than a piece may have.
    return zlib.decompressobj().decompress(kept[1:], BLOB_LIMIT_BYTES)


def _name(digest: bytes) -> str:
    text = digest.hex()
    return f"{_BLOBS}{text[:2]}/{text[2:]}"


def _digest_of(name: str) -> bytes | None:
    try:
        digest = bytes.fromhex(name.removeprefix(_BLOBS).replace("/", ""))
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES else None
