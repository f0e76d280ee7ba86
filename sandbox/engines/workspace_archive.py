"""What is in a workspace, one entry after another, and the tar streams in which a Docker engine gives and takes it.

    for entry, content in read_tar(pieces): ...      # each content before the next entry
    pieces = write_tar(contents, owner=user_id)

Neither keeps more than one piece in memory, however large the workspace is. Tool code made what a tar stream says:
names are checked here, sizes and counts by the caller. A symbolic link is kept as it is, wherever it points: only tool
code ever follows it, and tool code may make any.
"""

import asyncio
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

from sandbox.engines.background import over
from sandbox.engines.tar_stream import TarStream
from sandbox.errors import SandboxUnavailable

_Piece = TypeVar("_Piece")
_Value = TypeVar("_Value")
Kind: TypeAlias = Literal["directory", "file", "symlink", "hardlink", "special", "misnamed"]

PIECE_BYTES = 1024 * 1024
PERMISSIONS = 0o777
"""What of a mode is kept: not setuid, setgid and sticky."""
_ROOT_MODE = 0o711
# What the kernel takes of a path and of a name, and what may come before the paths of a workspace where an engine
# reads it.
_PATH_BYTES, _NAME_BYTES, _ENGINE_BYTES = 4096, 256, 256
# What a tar stream ends with; one that does not was cut short.
_END = bytes(2 * tarfile.BLOCKSIZE)
_KINDS: dict[bytes, Kind] = {
    tarfile.DIRTYPE: "directory",
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_TYPES = {kind: type_ for type_, kind in _KINDS.items() if type_ != tarfile.AREGTYPE}
# Headers of 250,000 entries, of which a snapshot has no more (gateway/snapshots/snapshot_files.py), with the longest
# paths that there are. Only a daemon that lies sends more.
_HEADERS_BYTES = 3 * 1024**3
# How long a stream may be waited for, in all; for each piece, its source has a time limit.
_LEAST_BYTES_PER_S = 1024 * 1024
_DELAY_S = 60.0
# Beyond what file systems have; a daemon that writes it in a workspace has it as a floating-point number.
_TIME_LIMIT_S = 2**53


@dataclass(frozen=True)
class WorkspaceEntry:
    """Something in a workspace; `path` is relative to its root, which is "" itself. What is no UTF-8 is escaped.

    `mode` has all twelve bits. `target` is what a symbolic link says, or the path of the entry that a hard link is
    another name of. "special" is what no copy can be made of: a device, a pipe, a socket; "misnamed" has no path in the
    workspace, or stands for all that may be in a directory at the end of the longest path.
    """

    path: str
    kind: Kind
    mode: int = 0o644
    modified_s: int = 0
    size_bytes: int = 0
    target: str = ""


Contents: TypeAlias = Iterator[tuple[WorkspaceEntry, Iterator[bytes]]]
"""Entries, directories before what is in them, each with the bytes of a file, to be read before the next entry."""


class Passing(Protocol):
    """Passes entries or pieces on until the caller that waits for them gives up; then it raises ArchiveBroken."""

    def __call__(self, pieces: Iterable[_Piece], /) -> Iterator[_Piece]: ...


class ArchiveBroken(SandboxUnavailable):
    """A tar stream ended early, or is none: what it is made of changed while it was read, or the engine went away."""


async def streamed(
    work: Callable[[Passing], _Value], begin: Callable[[Callable[[], _Value]], asyncio.Future[_Value]]
) -> _Value:
    """Return the result of work that blocks; `begin` runs it in a thread, whose end a cancelled caller waits for."""
    stopped = threading.Event()

    def passing(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
        for piece in pieces:
            if stopped.is_set():
                raise ArchiveBroken("every caller that waited for these files has given up")
            yield piece

    streaming = begin(lambda: work(passing))
    try:
        return await asyncio.shield(streaming)
    except asyncio.CancelledError:
        stopped.set()
        await over(streaming)
        raise


def bounded(
    pieces: Iterable[bytes], workspace_bytes: int, *, now_s: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Pass a tar stream on; SandboxUnavailable once it is larger, or is waited for longer, than a workspace needs."""
    limit_bytes = workspace_bytes + _HEADERS_BYTES
    limit_s = limit_bytes / _LEAST_BYTES_PER_S + _DELAY_S
    came_bytes, waited_s, coming = 0, 0.0, iter(pieces)
    while True:
        began_s = now_s()
        piece = next(coming, None)
        if piece is None:
            return
        waited_s += now_s() - began_s
        came_bytes += len(piece)
        if came_bytes > limit_bytes or waited_s > limit_s:
            raise SandboxUnavailable(
                f"reading the files of this thread was given up: {came_bytes:,} bytes came in {waited_s:,.0f} s, and a "
                f"workspace of {workspace_bytes:,} bytes takes {limit_bytes:,} bytes and {limit_s:,.0f} s at most"
            )
        yield piece


def read_tar(pieces: Iterable[bytes], root: str) -> Contents:
    """Yield what is in a tar stream whose names begin with `root`; ArchiveBroken when it ends early, or is none."""
    stream = TarStream(pieces)
    while (entry := _next(stream, root)) is not None:
        yield entry, _content(stream)
        if entry.kind == "directory" and is_out_of_reach(entry.path):
            # An engine leaves out in silence what it cannot reach.
            yield WorkspaceEntry(entry.path, "misnamed"), iter(())


def _next(stream: TarStream, root: str) -> WorkspaceEntry | None:
    with _broken():
        member = stream.next()
        return None if member is None else entry_of(member, root)


def is_out_of_reach(path: str, *, above_bytes: int = _ENGINE_BYTES) -> bool:
    """Return whether names below a directory may be longer, with its path, than the kernel takes."""
    return above_bytes + len(path.encode("utf-8", "surrogateescape")) + _NAME_BYTES >= _PATH_BYTES


def write_tar(contents: Contents, *, root: str, owner: int) -> Iterator[bytes]:
    """Yield a tar stream of entries, all owned by one user, without setuid, setgid and sticky."""
    return _gathered(_packed(contents, root, owner))


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces of some size: each is sent by itself, and of a small file there are three."""
    gathered: list[bytes] = []
    gathered_bytes = 0
    for piece in pieces:
        gathered.append(piece)
        gathered_bytes += len(piece)
        if gathered_bytes >= 256 * 1024:
            yield b"".join(gathered)
            gathered, gathered_bytes = [], 0
    if gathered:
        yield b"".join(gathered)


def _packed(contents: Contents, root: str, owner: int) -> Iterator[bytes]:
    for entry, content in contents:
        member = tarfile.TarInfo(f"{root}/{entry.path}" if entry.path else root)
        member.type = _TYPES[entry.kind]
        # The root lets its sandbox in, whatever tool code had made of it: no sandbox comes up where it cannot.
        member.mode = (entry.mode & PERMISSIONS) | (0 if entry.path else _ROOT_MODE)
        member.mtime = max(0, entry.modified_s)
        member.uid = member.gid = owner
        member.size = entry.size_bytes if entry.kind == "file" else 0
        member.linkname = f"{root}/{entry.target}" if entry.kind == "hardlink" else entry.target
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        yield from whole(content, member.size)
        yield bytes(-member.size % tarfile.BLOCKSIZE)
    yield _END


def whole(content: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """Pass on the content of a file; ArchiveBroken at its end if it has another size."""
    written = 0
    for piece in content:
        written += len(piece)
        yield piece
    if written != size_bytes:
        raise ArchiveBroken(f"a file of {size_bytes} bytes came with {written}")


def entry_of(member: tarfile.TarInfo, root: str) -> WorkspaceEntry:
    """Return the entry of a member whose name begins with `root`."""
    path = _within(member.name, root)
    kind = _KINDS.get(member.type, "special")
    target = member.linkname
    if kind == "hardlink":
        within = _within(target, root)
        path, target = (None, "") if within is None else (path, within)
    if path is None:
        return WorkspaceEntry(member.name, "misnamed")
    size = member.size if kind == "file" else 0
    modified_s = max(-_TIME_LIMIT_S, min(int(member.mtime), _TIME_LIMIT_S))
    return WorkspaceEntry(path, kind, member.mode & 0o7777, modified_s, size, target)


def _within(name: str, root: str) -> str | None:
    """Return a member's path below the root; None for one that is not there."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or parts[0] != root or ".." in parts or name.startswith("/"):
        return None
    return "/".join(parts[1:])


def _content(stream: TarStream) -> Iterator[bytes]:
    with _broken():
        yield from stream.content()


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise ArchiveBroken(f"the files cannot be read to the end: {error}") from error
