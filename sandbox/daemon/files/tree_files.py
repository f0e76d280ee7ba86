"""Describes, lists, walks, creates, removes and renames paths; entries of replies, and pages of entries and matches.

A tree is walked in sorted order without following symbolic links: each directory is opened through its parent.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sandbox.daemon.failures import check_range, fault_at, internal, invalid_path, permission_denied, too_large
from sandbox.daemon.files.slow_work import HERE_LIMIT_BYTES, Emit, work_in_child, work_in_thread
from sandbox.daemon.paths import PATH_LIMIT_BYTES, Place, closing, components, join, open_directory
from sandbox.v1 import channel_pb2 as wire

# The limit of a page of entries or matches, which must fit one frame.
PAGE_LIMIT_BYTES = 1024 * 1024
_TYPES = {
    stat.S_IFREG: wire.ENTRY_TYPE_FILE,
    stat.S_IFDIR: wire.ENTRY_TYPE_DIRECTORY,
    stat.S_IFLNK: wire.ENTRY_TYPE_SYMLINK,
}


class Page:
    """Emits the results of a page in fragments; `total` counts them, `full` is set by the first one beyond the page."""

    def __init__(self, offset: int, limit: int, emit: Callable[[Any], None]) -> None:
        self._offset = offset
        self._left = limit
        self._left_bytes = PAGE_LIMIT_BYTES
        self._emit = emit
        self.total = 0
        self.full = False

    def skip(self) -> bool:
        """Return whether the next result is before the page, and count it in that case."""
        before = self.total < self._offset
        self.total += before
        return before

    def add(self, fragment: Any) -> bool:
        """Emit a result, a protobuf message, unless the page is full; return whether it is not."""
        self.total += 1
        self._left_bytes -= fragment.ByteSize()
        self.full = not self._left or self._left_bytes < 0
        if not self.full:
            self._left -= 1
            self._emit(fragment)
        return not self.full


def entry_of(name: str, state: os.stat_result) -> wire.Entry:
    """Return the Entry of a path."""
    return wire.Entry(
        name=os.fsencode(name),
        type=_TYPES.get(stat.S_IFMT(state.st_mode), wire.ENTRY_TYPE_OTHER),
        size_bytes=state.st_size,
        mode=stat.S_IMODE(state.st_mode),
        modified_ns=max(min(state.st_mtime_ns, 2**63 - 1), -(2**63)),
    )


ENTRIES_LIMIT = 10_000
# Larger directories are listed by a child process.
_HERE_LIMIT = 5_000
_TIMEOUT_S = 60.0
# Millions of files take minutes; cancelling the call kills the child.
REMOVE_TIMEOUT_S = 600.0
# Removal recurses so deep, with a descriptor per level.
_LEVELS = 64


def stat_path(request: wire.StatRequest) -> wire.Reply:
    """Describe a path; a link at its end is described, not followed."""
    with Place(request.path) as place:
        return wire.Reply(entry=entry_of(place.path, place.stat()))


async def list_directory(request: wire.ListRequest) -> wire.Reply:
    """Return a page of a directory's entries, sorted by name."""
    check_range("limit", request.limit, ENTRIES_LIMIT)
    reply = wire.EntriesReply()
    if request.limit <= _HERE_LIMIT and _emit_page(request, reply.MergeFrom, at_most=_HERE_LIMIT):
        return wire.Reply(entries=reply)
    if not await work_in_child(partial(_emit_page, request), reply, _TIMEOUT_S, request.path):
        raise too_large(
            f"{request.path}: listing took longer than {_TIMEOUT_S:.0f} s; move some of the files elsewhere"
        )
    return wire.Reply(entries=reply)


def _emit_page(request: wire.ListRequest, emit: Emit, *, at_most: int | None = None) -> bool:
    """Emit a page; return False, and emit nothing, if the directory has more than `at_most` entries."""
    with Place(request.path) as place:
        fd = place.open_listing()
    names = []
    with closing(fd), fault_at(place.path):
        with os.scandir(fd) as listing:
            for found in listing:
                names.append(found.name)
                if at_most is not None and len(names) > at_most:
                    return False
        names.sort()
        page = Page(0, request.limit, emit)
        for name in names[request.offset : request.offset + request.limit]:
            try:
                entry = entry_of(name, os.stat(name, dir_fd=fd, follow_symlinks=False))
            except OSError:  # removed since the listing; it stays in the page, so that pages are consistent
                entry = wire.Entry(name=os.fsencode(name), type=wire.ENTRY_TYPE_OTHER)
            if not page.add(wire.EntriesReply(entries=[entry])):
                break
    more = page.full or request.offset + page.total < len(names)
    emit(wire.EntriesReply(total=len(names), more=more))
    return True


def make_directory(request: wire.MkdirRequest) -> wire.Reply:
    """Make a directory and its parents."""
    names = components(request.path)
    with closing(open_directory(names, len(names), make=True)) as fd:
        return wire.Reply(entry=entry_of(join(names), os.fstat(fd)))


async def remove(request: wire.RemoveRequest) -> wire.Reply:
    """Remove a file, a link itself, or a directory; return what it was."""
    with Place(request.path) as place:
        if not place.names:
            raise permission_denied("/ cannot be removed", errno.EPERM)
        state = place.stat()
        entry = entry_of(place.path, state)
        if stat.S_ISDIR(state.st_mode) and request.recursive:
            nothing = wire.Entry()
            if not await work_in_child(lambda _: _remove_tree(request.path), nothing, REMOVE_TIMEOUT_S, place.path):
                raise internal(
                    f"{place.path}: removing took over {REMOVE_TIMEOUT_S:.0f} s; part of it is gone, ask again"
                )
            return wire.Reply(entry=entry)
        with fault_at(place.path):
            if stat.S_ISDIR(state.st_mode):
                os.rmdir(place.name, dir_fd=place.directory_fd)
            else:
                unlink = partial(os.unlink, place.name, dir_fd=place.directory_fd)
                await work_in_thread(unlink, slow=state.st_size > HERE_LIMIT_BYTES)
    return wire.Reply(entry=entry)


def _remove_tree(path: str) -> None:
    with Place(path) as place, fault_at(place.path):
        remove_directory(place.directory_fd, place.name)


def remove_directory(directory_fd: int, name: str) -> None:
    """Remove a directory through descriptors, so that no link is followed; raises OSError."""
    with closing(_opened(directory_fd, name)) as fd:
        empty_directory(fd)
    os.rmdir(name, dir_fd=directory_fd)


def empty_directory(fd: int, *, opened: Callable[[int, str], int] | None = None) -> None:
    """Remove the contents of a directory of any depth; `opened` opens subdirectories. Raises OSError."""
    while _empty(fd, fd, levels=_LEVELS, opened=opened or _opened):
        pass


def _empty(top_fd: int, directory_fd: int, *, levels: int, opened: Callable[[int, str], int]) -> bool:
    """Empty a directory; return whether something below it was moved to `top_fd`, and so still exists."""
    # Deeper directories than `levels` are moved there, so neither descriptors nor the stack grow with the tree's depth.
    moved = False
    with os.scandir(directory_fd) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for child, is_directory in entries:
        if not is_directory:
            os.unlink(child, dir_fd=directory_fd)
        elif levels:
            with closing(opened(directory_fd, child)) as fd:
                moved |= _empty(top_fd, fd, levels=levels - 1, opened=opened)
            os.rmdir(child, dir_fd=directory_fd)
        else:
            os.rename(child, f".{os.urandom(16).hex()}", src_dir_fd=directory_fd, dst_dir_fd=top_fd)
            moved = True
    return moved


def _opened(directory_fd: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)


async def rename(request: wire.RenameRequest) -> wire.Reply:
    """Rename within one file system; a file in the way is replaced, a link in the way is refused."""
    with Place(request.path) as place, Place(request.new_path, what="new_path") as target:
        if not place.names or not target.names:
            raise invalid_path("/ can neither be renamed nor replaced")
        size_bytes = place.stat().st_size
        existing = target.stat_or_none()
        if existing is not None:
            target.refuse_link(existing)
            size_bytes = max(size_bytes, existing.st_size)
        fds = {"src_dir_fd": place.directory_fd, "dst_dir_fd": target.directory_fd}
        with fault_at(f"{place.path} to {target.path}"):
            work = partial(os.rename, place.name, target.name, **fds)
            await work_in_thread(work, slow=existing is not None and size_bytes > HERE_LIMIT_BYTES)
        return wire.Reply(entry=entry_of(target.path, target.stat()))


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
