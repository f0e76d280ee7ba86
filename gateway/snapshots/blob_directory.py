"""BlobDirectory: pieces of files by their SHA-256, each stored once, compressed if that helps.

A name exists only with all of its bytes, even if this process is killed. What is read is compared with its name, so a
disk that loses bytes causes an error, never a wrong file.
"""

import errno
import functools
import hashlib
import shutil
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from gateway.errors import Internal, NoSpace, Unavailable

BLOB_LIMIT_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 32
_RAW, _DEFLATED = b"r", b"z"
_LEVEL = 1
# A sample of a piece is compressed first: unless it shrinks by a tenth, the piece is stored as it is.
_SAMPLE_BYTES = 4 * 1024
_WORTH = 0.9
_BLOCK_BYTES = 4096
# The database is usually on the same disk, and a gateway whose database has no space cannot serve.
_KEPT_FREE_BYTES = 512 * 1024 * 1024
_LOOK_EVERY_BYTES = 16 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
log = structlog.get_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def disk_errors(work: Callable[_P, _T]) -> Callable[_P, _T]:
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


class BlobDirectory:
    """Blocking; for threads, several at once. One process at a time writes and sweeps, others may read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unlooked_bytes = _LOOK_EVERY_BYTES
        self._lock = threading.Lock()
        # The pieces that a thread is writing, so that no second one does.
        self._writing: set[bytes] = set()

    def put(self, data: bytes) -> tuple[bytes, int]:
        """Store a piece of at most BLOB_LIMIT_BYTES; return its digest, and how many bytes of disk that took.

        NoSpace, before the disk is full. If another thread is writing the same piece, its name exists once that is
        done.
        """
        digest = hashlib.sha256(data).digest()
        path = self._path(digest.hex())
        with self._lock:
            if digest in self._writing or path.exists():
                return digest, 0
            self._writing.add(digest)
        try:
            return digest, self._write(path, data)
        finally:
            with self._lock:
                self._writing.discard(digest)

    def _write(self, path: Path, data: bytes) -> int:
        self._refuse_full_disk(len(data))
        kept = _packed(data)
        half = path.with_suffix(".half")
        try:
            half.write_bytes(kept)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            half.write_bytes(kept)
        half.rename(path)
        return on_disk(len(kept))

    def get(self, digest: bytes) -> bytes:
        """Return a piece; Internal if it is gone or damaged."""
        try:
            kept = self._path(digest.hex()).read_bytes()
            data = _unpacked(kept)
        except (FileNotFoundError, zlib.error, ValueError):
            data = None
        if data is None or hashlib.sha256(data).digest() != digest:
            raise Internal(f"piece {digest.hex()[:12]} of the snapshot is gone or damaged on the gateway's disk")
        return data

    def sweep(self, kept: Iterable[bytes]) -> int:
        """Remove every piece except those of the digests, which come in order.

        Return how many bytes of disk are left.
        """
        wanted = iter(kept)
        following = next(wanted, None)
        left_bytes = 0
        for name, path in self._names():
            digest = _digest_of(name)
            while digest is not None and following is not None and following < digest:
                following = next(wanted, None)
            if digest is None or digest != following:
                path.unlink(missing_ok=True)
            else:
                left_bytes += on_disk(path.stat().st_size)
        return left_bytes

    def remove(self, digests: Collection[bytes]) -> int:
        """Remove pieces; return how many bytes of disk that freed. A missing one is no error."""
        return sum(removed(self._path(digest.hex())) for digest in digests)

    def _names(self) -> Iterator[tuple[str, Path]]:
        """Yield the names in the order of digests, with a fraction of them in memory at a time."""
        for fraction in sorted(self._directory.iterdir()) if self._directory.exists() else ():
            for path in sorted(fraction.iterdir()):
                yield fraction.name + path.name, path

    def _path(self, name: str) -> Path:
        return self._directory / name[:2] / name[2:]

    def _refuse_full_disk(self, size_bytes: int) -> None:
        self._unlooked_bytes += size_bytes
        if self._unlooked_bytes >= _LOOK_EVERY_BYTES:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if shutil.disk_usage(self._directory).free < _KEPT_FREE_BYTES:
                why = "the gateway's disk is nearly full, and keeps no more snapshots; delete some"
                raise NoSpace(why, disk="gateway")
            self._unlooked_bytes = 0


def on_disk(size_bytes: int) -> int:
    """Return how many bytes of disk a file takes."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def removed(path: Path) -> int:
    """Remove a file; return how many bytes of disk it had, 0 if it does not exist."""
    try:
        size_bytes = on_disk(path.stat().st_size)
        path.unlink()
    except FileNotFoundError:
        return 0
    return size_bytes


def _packed(data: bytes) -> bytes:
    # From the middle: many compressed formats begin with a compressible header.
    begin = max(0, (len(data) - _SAMPLE_BYTES) // 2)
    sample = data[begin : begin + _SAMPLE_BYTES]
    deflated = zlib.compress(sample, _LEVEL)
    if len(deflated) > _WORTH * len(sample):
        return _RAW + data
    return _DEFLATED + (deflated if len(data) == len(sample) else zlib.compress(data, _LEVEL))


def _unpacked(kept: bytes) -> bytes:
    if kept[:1] == _RAW:
        return kept[1:]
    if kept[:1] != _DEFLATED:
        raise ValueError(kept[:1])
    # The stored bytes are trusted only after the digest is checked: inflate no more than a piece may have.
    return zlib.decompressobj().decompress(kept[1:], BLOB_LIMIT_BYTES)


def _digest_of(name: str) -> bytes | None:
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES else None
