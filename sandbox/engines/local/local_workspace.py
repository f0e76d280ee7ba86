"""Reads a directory of this machine as workspace contents, and writes contents to one. See workspace_archive.py."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from sandbox.daemon.files import tree_files
from sandbox.engines.workspace_archive import PERMISSIONS, PIECE_BYTES, ArchiveBroken, Contents, Kind, WorkspaceEntry

_KINDS: dict[int, Kind] = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "symlink"}


def read_directory(root: Path, *, going: Callable[[], bool] = lambda: True) -> Contents:
    """Yield the contents of a directory; ArchiveBroken if a file changes meanwhile, or once `going` is false."""
    names: dict[tuple[int, int], str] = {}
    pending = [""]
    try:
        while pending:
            if not going():
                raise ArchiveBroken("every caller that waited for these files has given up")
            path = pending.pop()
            try:
                state = (root / path).lstat()
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                yield WorkspaceEntry(path, "misnamed"), iter(())
                continue
            entry = _entry(root, path, state, names)
            if entry.kind == "directory":
                found = sorted((one.name for one in (root / path).iterdir()), reverse=True)  # popped from the end
                pending.extend(f"{path}/{name}" if path else name for name in found)
            yield entry, _content(root / path, entry)
    except OSError as error:
        raise ArchiveBroken(f"the files cannot be read to the end: {error.strerror}") from error


def fill_directory(root: Path, contents: Contents, *, going: Callable[[], bool] = lambda: True) -> None:
    """Write contents to an empty directory; ArchiveBroken for an entry outside it, or once `going` is false.

    Links are never followed, whatever the order of entries.
    """
    root = root.resolve(strict=True)
    modes: list[tuple[Path, int]] = []
    for entry, content in contents:
        if not going():
            raise ArchiveBroken("every caller that waited for these files has given up")
        place = _within(root, entry.path)
        match entry.kind:
            case "directory":
                place.mkdir(parents=True, exist_ok=True)
                modes.append((place, entry.mode))
            case "file":
                _write(place, entry, content)
            case "symlink":
                place.symlink_to(entry.target)
            case "hardlink":
                place.hardlink_to(_within(root, entry.target))
            case _:
                raise ArchiveBroken(f"{entry.path[:200]!r} is nothing that a workspace may have ({entry.kind})")
    # Last and from below: a read-only directory could not have been filled.
    for place, mode in reversed(modes):
        place.chmod(mode & PERMISSIONS)


def remove_directory(path: Path) -> None:
    """Remove a directory of any depth; what cannot be removed stays."""
    with suppress(OSError):
        above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            tree_files.remove_directory(above, path.name)
        finally:
            os.close(above)
    if path.exists():  # something could not be removed, and removal stopped there
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _entry(root: Path, path: str, state: os.stat_result, names: dict[tuple[int, int], str]) -> WorkspaceEntry:
    kind = _KINDS.get(stat.S_IFMT(state.st_mode), "special")
    target = ""
    if kind == "symlink":
        target = str((root / path).readlink())
    elif kind == "file" and state.st_nlink > 1:
        target = names.setdefault((state.st_dev, state.st_ino), path)
        if target == path:
            target = ""
        else:
            kind = "hardlink"
    size_bytes = state.st_size if kind == "file" else 0
    return WorkspaceEntry(path, kind, stat.S_IMODE(state.st_mode), int(state.st_mtime), size_bytes, target)


def _content(place: Path, entry: WorkspaceEntry) -> Iterator[bytes]:
    if entry.kind != "file":
        return
    left = entry.size_bytes
    try:
        with os.fdopen(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece
    except OSError as error:
        raise ArchiveBroken(f"a file cannot be read to the end: {error.strerror}") from error
    if left:
        raise ArchiveBroken("the files cannot be read to the end: they change while they are read")


def _write(place: Path, entry: WorkspaceEntry, content: Iterator[bytes]) -> None:
    written = 0
    with place.open("xb") as file:
        for piece in content:
            written += len(piece)
            file.write(piece)
    if written != entry.size_bytes:
        raise ArchiveBroken(f"a file of {entry.size_bytes} bytes came with {written}")
    place.chmod(entry.mode & PERMISSIONS)
    os.utime(place, (entry.modified_s, entry.modified_s))


def _within(root: Path, path: str) -> Path:
    """Return a path below the root, with its directory created; ArchiveBroken for links and ".." on the way."""
    place = root / path if path else root
    parent = place.parent if path else root
    try:
        honest = parent.resolve() == Path(os.path.normpath(parent)) and place.name not in ("", "..")
        inside = parent == root or root in parent.parents
        if honest and inside and ".." not in Path(path).parts:
            parent.mkdir(parents=True, exist_ok=True)
            return place
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            raise
    raise ArchiveBroken(f"{path[:200]!r} is no path in a workspace")
