"""A directory of this machine that is filled with what a sandbox names, and nothing outside it.

The names and modes come from the sandbox, which is not trusted. No symbolic link is followed below the directory, also
none that was there before; a name with `..` or an absolute one is refused; of a mode only the execute bits count.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from airlock.errors import InvalidPath, Misconfigured

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
# What the system says of a link, or a file, where a directory is expected.
_NO_DIRECTORY = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


class NewFile:
    """A file that appears under its name when it is whole."""

    def __init__(self, directory: int, name: str, *, executable: bool) -> None:
        self._directory, self._name = directory, name
        self._part = f".airlock-{secrets.token_hex(8)}.part"
        mode = 0o777 if executable else 0o666  # less the umask
        self._file = os.fdopen(os.open(self._part, _NEW_FILE | _NO_LINK, mode, dir_fd=directory), "wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        """Replace what has its name. Raises IsADirectoryError."""
        self._file.close()
        os.replace(self._part, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def discard(self) -> None:
        """Remove a file that was not finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part, dir_fd=self._directory)


class LocalDirectory:
    """The directory; `path` may be a link, because the caller named it."""

    def __init__(self, path: Path) -> None:
        """Make the directory if it is missing. Raises OSError, and Misconfigured where the system cannot do this."""
        if os.open not in os.supports_dir_fd:
            raise Misconfigured(
                "download: this operating system cannot write below a directory without following links"
            )
        path.mkdir(parents=True, exist_ok=True)
        self._root = os.open(path, _DIRECTORY)

    def close(self) -> None:
        os.close(self._root)

    def make(self, name: str) -> None:
        """Make a directory and its parents."""
        with self._opened(_parts(name)):
            pass

    @contextlib.contextmanager
    def new_file(self, name: str, *, executable: bool) -> Iterator[NewFile]:
        """Make a file, and its parents, which replaces what has its name if the block succeeds."""
        *parents, last = _parts(name)
        with self._opened(parents) as directory:
            file = NewFile(directory, last, executable=executable)
            try:
                yield file
                file.finish()
            except BaseException:
                file.discard()
                raise

    @contextlib.contextmanager
    def _opened(self, parts: list[str]) -> Iterator[int]:
        """Open a directory below the root, made if it is missing, one component at a time."""
        opened = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=opened)
                below = _open_directory(part, opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)


def _open_directory(part: str, parent: int) -> int:
    try:
        return os.open(part, _DIRECTORY | _NO_LINK, dir_fd=parent)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            is_link = stat.S_ISLNK(os.lstat(part, dir_fd=parent).st_mode)
            what = "is a symbolic link, which a download does not follow" if is_link else "is in the way: a file"
            raise InvalidPath(f"{part!r} {what}; remove it, or choose another directory") from error
        raise


def _parts(name: str) -> list[str]:
    """Return the components of a path that a sandbox named. Raises InvalidPath for one that leads elsewhere."""
    parts = name.split("/")
    separators = [one for one in (os.altsep, os.sep) if one and one != "/"]
    if any(part in ("", ".", "..") or "\0" in part or any(one in part for one in separators) for part in parts):
        raise InvalidPath(f"the sandbox names a file {name[:200]!r}, which is no path below the directory")
    return parts
