"""Walking a tree in sorted order without following symbolic links, each directory opened through its parent."""

import os
import stat
from collections.abc import Callable, Iterator

# Directories deeper than this are not searched: each level holds a descriptor.
DEPTH_LIMIT = 256

# Where evicted results are kept, below the workspace; searches skip it unless they start inside it.
PRIVATE_NAME = ".airlock"


class Found:
    """One thing in the tree. `names` leads to it from the top; `directory_fd` is its directory, open meanwhile."""

    __slots__ = ("directory_fd", "is_directory", "is_regular", "name", "names")

    def __init__(self, directory_fd: int, names: tuple[str, ...], entry: "os.DirEntry[str]") -> None:
        self.directory_fd = directory_fd
        self.names = names
        self.name = names[-1]
        self.is_directory = entry.is_dir(follow_symlinks=False)
        self.is_regular = entry.is_file(follow_symlinks=False)

    def stat(self) -> os.stat_result:
        """Return what lstat says; OSError when it is gone."""
        return os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)


def walk(top_fd: int, skip: tuple[str, ...] | None, enter: Callable[[Found], bool] | None = None) -> Iterator[Found]:
    """Yield everything below a directory, parents before children, names in order; `enter` may keep it out of one.

    `skip` is the names of one directory, from the top, to leave out. What cannot be read is passed over, as find does.
    """
    yield from _walk(top_fd, (), skip, enter or (lambda _: True))


def _walk(
    fd: int, above: tuple[str, ...], skip: tuple[str, ...] | None, enter: Callable[[Found], bool]
) -> Iterator[Found]:
    try:
        with os.scandir(fd) as listing:
            entries = sorted(listing, key=_name)
    except OSError:
        return
    for entry in entries:
        names = (*above, entry.name)
        if names == skip:
            continue
        try:
            found = Found(fd, names, entry)
        except OSError:
            continue  # gone, and its kind was not in the listing
        yield found
        if not found.is_directory or len(names) >= DEPTH_LIMIT or not enter(found):
            continue
        try:
            child = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            continue
        try:
            yield from _walk(child, names, skip, enter)
        finally:
            os.close(child)


def _name(entry: "os.DirEntry[str]") -> str:
    return entry.name


def private_below(names: list[str], workspace: str) -> tuple[str, ...] | None:
    """Return where the private directory lies below a search's top, None when it does not."""
    private = [*(name for name in workspace.split("/") if name), PRIVATE_NAME]
    if names == private[: len(names)] and len(names) < len(private):
        return tuple(private[len(names) :])
    return None


def is_directory(fd: int) -> bool:
    """Return whether a descriptor is one of a directory."""
    return stat.S_ISDIR(os.fstat(fd).st_mode)
