"""Walks a tree in sorted order without following symbolic links; each directory is opened through its parent."""

import os
from collections.abc import Callable, Iterator, Sequence

from sandbox.daemon.paths import PATH_LIMIT_BYTES, closing

# Deeper directories are counted and not searched: each level takes a descriptor.
DEPTH_LIMIT = 256

# The directory of evicted output, below the workspace; searches skip it unless they start inside it.
PRIVATE_NAME = ".airlock"


class Found:
    """An entry of the tree: its `names` from the top, and its open directory."""

    __slots__ = ("directory_fd", "is_directory", "is_regular", "name", "names")

    def __init__(self, directory_fd: int, names: tuple[str, ...], *, is_directory: bool, is_regular: bool) -> None:
        self.directory_fd = directory_fd
        self.names = names
        self.name = names[-1]
        self.is_directory = is_directory
        self.is_regular = is_regular

    def stat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)


def walk(
    top_fd: int,
    skip: tuple[str, ...] | None,
    enter: Callable[[Found], bool] = lambda _: True,
    missed: Callable[[], None] = lambda: None,
    *,
    top: Sequence[str] = (),
) -> Iterator[Found]:
    """Yield everything below a directory, parents before children, in sorted order.

    `enter` decides whether to walk a directory, and `skip` is the path of one to omit. `missed` is called for each
    directory that cannot be read, is too deep, or has a longer path than calls accept. `top` is the path of the top.
    """

    def below(fd: int, above: tuple[str, ...], above_bytes: int) -> Iterator[Found]:
        try:
            listed, directories, others = _listing(fd)
        except OSError:
            missed()
            return
        if above_bytes + 1 + 255 > PATH_LIMIT_BYTES:  # no name is longer
            short = [name for name in listed if above_bytes + 1 + len(os.fsencode(name)) <= PATH_LIMIT_BYTES]
            if len(short) < len(listed):
                missed()
            listed = short
        for name in listed:
            names = (*above, name)
            if names == skip:
                continue
            is_directory = name in directories
            found = Found(fd, names, is_directory=is_directory, is_regular=not is_directory and name not in others)
            yield found
            if not is_directory or not enter(found):
                continue
            if len(names) >= DEPTH_LIMIT:
                missed()
                continue
            try:
                child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except FileNotFoundError:
                continue  # removed since the listing
            except OSError:
                missed()
                continue
            with closing(child):
                yield from below(child, names, above_bytes + 1 + len(os.fsencode(name)))

    yield from below(top_fd, (), sum(1 + len(os.fsencode(name)) for name in top))


def _listing(fd: int) -> tuple[list[str], set[str], set[str]]:
    """Return the sorted names in a directory, and which are directories, and which neither that nor files."""
    # Names only: a directory may have a million of them, and entries take four times the memory.
    listed: list[str] = []
    directories: set[str] = set()
    others: set[str] = set()
    with os.scandir(fd) as listing:
        for entry in listing:
            listed.append(entry.name)
            if entry.is_dir(follow_symlinks=False):
                directories.add(entry.name)
            elif not entry.is_file(follow_symlinks=False):
                others.add(entry.name)
    listed.sort()
    return listed, directories, others


def private_below(names: list[str], workspace: str) -> tuple[str, ...] | None:
    """Return the private directory's path below a search's top, None if it is not below."""
    private = [*(name for name in workspace.split("/") if name), PRIVATE_NAME]
    if names == private[: len(names)] and len(names) < len(private):
        return tuple(private[len(names) :])
    return None
