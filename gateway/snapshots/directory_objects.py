"""DirectoryObjects: a tenant's objects as files of one directory."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import structlog

from gateway.errors import NoSpace, Unavailable
from gateway.snapshots.objects import PART_BYTES, Missing

_HALF = ".half"
_BLOCK_BYTES = 4096
# The database is usually on the same disk, and a gateway whose database has no space cannot serve.
_KEPT_FREE_BYTES = 512 * 1024 * 1024
_LOOK_EVERY_BYTES = 16 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
log = structlog.get_logger(__name__)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise the disk's errors as the gateway's."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            why = "the gateway's disk is full, and keeps no more snapshots; delete some"
            raise NoSpace(why, disk="gateway") from error
        log.warning("snapshots_dir cannot be used", path=error.filename, error=error.strerror, errno=error.errno)
        raise Unavailable(f"the gateway's snapshots_dir cannot be used: {error.strerror}; see its log") from error


class DirectoryObjects:
    """Files below a directory, which also has files of its own at its top."""

    threads = min(4, os.cpu_count() or 1)

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unlooked_bytes = _LOOK_EVERY_BYTES

    @disk_errors()
    def put(self, name: str, parts: Iterable[bytes], *, last: bool = False) -> int:
        path = self._directory / name
        half = path.with_name(f"{path.name}{_HALF}")
        size_bytes = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with half.open("wb") as file:
                for part in parts:
                    self._refuse_full_disk(len(part))
                    file.write(part)
                    size_bytes += len(part)
            if last:
                _publish(half, path)
            else:
                half.rename(path)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        return self.takes(size_bytes)

    @disk_errors()
    def size(self, name: str) -> int | None:
        try:
            return self.takes((self._directory / name).stat().st_size)
        except FileNotFoundError:
            return None

    def get(self, name: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
        with disk_errors():
            try:
                file = (self._directory / name).open("rb")
            except FileNotFoundError:
                raise Missing(name) from None
        with file:
            while part := _read(file, part_bytes):
                yield part

    def names(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield them with one directory of them in memory at a time."""
        with disk_errors():
            found = sorted((self._directory / prefix).iterdir()) if (self._directory / prefix).is_dir() else []
        for path in found:
            name = path.relative_to(self._directory).as_posix()
            if path.is_dir():
                yield from self.names(f"{name}/")
            elif path.suffix != _HALF and (size_bytes := self.size(name)) is not None:
                yield name, size_bytes

    @disk_errors()
    def remove(self, names: Collection[str]) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    @disk_errors()
    def tidy(self) -> None:
        for path in self._directory.rglob(f"*{_HALF}"):
            path.unlink(missing_ok=True)

    @disk_errors()
    def erase(self) -> None:
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def takes(self, size_bytes: int) -> int:
        return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def _refuse_full_disk(self, size_bytes: int) -> None:
        self._unlooked_bytes += size_bytes
        if self._unlooked_bytes >= _LOOK_EVERY_BYTES:
            if shutil.disk_usage(self._directory).free < _KEPT_FREE_BYTES:
                why = "the gateway's disk is nearly full, and keeps no more snapshots; delete some"
                raise NoSpace(why, disk="gateway")
            self._unlooked_bytes = 0


@disk_errors()
def _read(file: BinaryIO, part_bytes: int) -> bytes:
    return file.read(part_bytes)


def _publish(half: Path, path: Path) -> None:
    """Give a file its name, once everything written to its file system is on the disk."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # At once instead of file by file.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        half.rename(path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
