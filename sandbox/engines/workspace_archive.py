"""What is in a workspace, one entry after another, and the tar streams in which a Docker engine gives and takes it.

    for entry, content in read_tar(pieces): ...      # each content before the next entry
    pieces = write_tar(contents, owner=user_id)

Neither keeps more than one piece in memory, however large the workspace is. Tool code made what a tar stream says:
names are checked here, sizes and counts by the caller. A symbolic link is kept as it is, wherever it points: only tool
code ever follows it, and tool code may make any.
"""

import asyncio
import io
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Literal, Protocol, TypeAlias, TypeVar, cast

from sandbox.engines.background import over
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


def read_tar(pieces: Iterable[bytes], root: str) -> Contents:
    """Yield what is in a tar stream whose names begin with `root`; ArchiveBroken when it ends early."""
    source = _Pieces(pieces)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|", bufsize=PIECE_BYTES) as archive:
            while (member := archive.next()) is not None:
                entry = entry_of(member, root)
                file = archive.extractfile(member) if entry.kind == "file" else None
                yield entry, _content(file)
                if entry.kind == "directory" and is_out_of_reach(entry.path):
                    # An engine leaves out in silence what it cannot reach.
                    yield WorkspaceEntry(entry.path, "misnamed"), iter(())
                archive.members = []  # type: ignore[attr-defined] # it would keep all of them
            end_bytes = archive.offset  # of the last entry
    except tarfile.TarError as error:
        raise ArchiveBroken(f"the files cannot be read to the end: {error}") from error
    if source.rest() != _END or source.read_bytes < end_bytes + len(_END):
        raise ArchiveBroken("the files cannot be read to the end: they change while they are read")


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
    return WorkspaceEntry(path, kind, member.mode & 0o7777, int(member.mtime), size, target)


def _within(name: str, root: str) -> str | None:
    """Return a member's path below the root; None for one that is not there."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or parts[0] != root or ".." in parts or name.startswith("/"):
        return None
    return "/".join(parts[1:])


def _content(file: IO[bytes] | None) -> Iterator[bytes]:
    try:
        while file is not None and (piece := file.read(PIECE_BYTES)):
            yield piece
    except tarfile.TarError as error:
        raise ArchiveBroken(f"a file cannot be read to the end: {error}") from error


class _Pieces(io.RawIOBase):
    """Pieces as tarfile reads a file, and the last bytes of them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")
        self._last = b""
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; fewer, never none, while there are more."""
        while not self._piece:
            following = next(self._pieces, None)
            if following is None:
                return b""
            self._piece = memoryview(following)
        data, self._piece = bytes(self._piece[:size]), self._piece[size:]
        self.read_bytes += len(data)
        self._last = (self._last + data)[-len(_END) :] if len(data) < len(_END) else data[-len(_END) :]
        return data

    def rest(self) -> bytes:
        """Read to the end, and return the last two blocks of it all."""
        while self.read(PIECE_BYTES):
            pass
        return self._last
