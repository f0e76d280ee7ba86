"""LocalWorkspaces: the files of many threads, one directory each below a root on this machine.

root/id                                     the id of the root; locked by the process that uses the root
root/workspaces/TENANT/THREAD/workspace     named by the digests of owner_of()
root/workspaces/TENANT/THREAD/tmp           removed with the sandbox
root/tmp                                    sockets, and incomplete or deleted files; emptied at the next start
"""

import asyncio
import errno
import fcntl
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

from sandbox.daemon.files import tree_files
from sandbox.daemon.paths import closing
from sandbox.engines import workspace_archive as archive
from sandbox.errors import SandboxBusy, SandboxUnavailable
from sandbox.sandbox import Owner, digest

_TOP = "workspace"  # how names in an archive begin
_Value = TypeVar("_Value")

# How long the daemons of a killed process may take to end what they run.
_LOCK_TIMEOUT_S = 10.0


def read_directory(root: Path) -> archive.Contents:
    """Yield the contents of a directory; ArchiveBroken if a file changes meanwhile."""
    pending = [""]
    try:
        with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:  # knows which file has several names
            while pending:
                path = pending.pop()
                try:
                    member = cast("tarfile.TarInfo | None", tar.gettarinfo(root / path, f"{_TOP}/{path}"))
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    yield archive.WorkspaceEntry(path, "misnamed"), iter(())
                    continue
                entry = archive.WorkspaceEntry(path, "special") if member is None else archive.entry_of(member, _TOP)
                if entry.kind == "directory":
                    found = sorted((one.name for one in (root / path).iterdir()), reverse=True)  # popped from the end
                    pending.extend(f"{path}/{name}" if path else name for name in found)
                yield entry, _content(root / path, entry)
    except OSError as error:
        raise archive.ArchiveBroken(f"the files cannot be read to the end: {error.strerror}") from error


def fill_directory(root: Path, contents: archive.Contents) -> None:
    """Write contents to an empty directory; ArchiveBroken for an entry outside it.

    Links are never followed, whatever the order of entries.
    """
    root = root.resolve(strict=True)
    modes: list[tuple[Path, int]] = []
    for entry, content in contents:
        place = _within(root, entry.path)
        match entry.kind:
            case "directory":
                place.mkdir(parents=True, exist_ok=True)
                modes.append((place, entry.mode))
            case "file":
                with place.open("xb") as file:
                    file.writelines(archive.whole(content, entry.size_bytes))
                place.chmod(entry.mode & archive.PERMISSIONS)
                os.utime(place, (entry.modified_s, entry.modified_s))
            case "symlink":
                place.symlink_to(entry.target)
            case "hardlink":
                place.hardlink_to(_within(root, entry.target))
            case _:
                raise archive.ArchiveBroken(f"{entry.path[:200]!r} is nothing that a workspace may have ({entry.kind})")
    # Last and from below: a read-only directory could not have been filled.
    for place, mode in reversed(modes):
        place.chmod(mode & archive.PERMISSIONS)


def remove_directory(path: Path) -> None:
    """Remove a directory of any depth; what cannot be removed stays."""
    with suppress(OSError), closing(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        tree_files.remove_directory(above, path.name)
    if path.exists():  # something could not be removed, and removal stopped there
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _content(place: Path, entry: archive.WorkspaceEntry) -> Iterator[bytes]:
    if entry.kind != "file":
        return
    left = entry.size_bytes
    try:
        with os.fdopen(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            while left and (piece := file.read(min(left, archive.PIECE_BYTES))):
                left -= len(piece)
                yield piece
    except OSError as error:
        raise archive.ArchiveBroken(f"a file cannot be read to the end: {error.strerror}") from error
    if left:
        raise archive.ArchiveBroken("the files cannot be read to the end: they change while they are read")


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
    raise archive.ArchiveBroken(f"{path[:200]!r} is no path in a workspace")


class LocalWorkspaces:
    """The workspaces of one root, which one process uses at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._exclusive: set[Owner] = set()
        self._preparing = asyncio.Lock()
        self.lock = -1
        self.closing = False

    async def id(self) -> str:
        """Return the id of the root, which is created private to this user if missing; raises SandboxUnavailable."""
        named = self._root / "id"
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not named.exists():
                half = named.with_suffix(".half")
                half.write_text(f"memory-{secrets.token_hex(8)}")
                half.rename(named)
            return named.read_text().strip()
        except OSError as error:
            raise self._unusable(error) from error

    async def prepare(self) -> None:
        """Create and lock the root, once what a killed process left in it has ended; raises SandboxUnavailable."""
        async with self._preparing:
            if self.lock < 0 and not self.closing:
                await self.id()
                try:
                    self.lock = await self._locked()
                    for left in (self._root / "tmp", *self._root.glob("workspaces/*/*/tmp")):
                        remove_directory(left)
                    (self._root / "tmp").mkdir(mode=0o700, exist_ok=True)
                except OSError as error:
                    raise self._unusable(error) from error
        if self.closing:
            raise SandboxUnavailable("the in-memory engine is closed and creates no more sandboxes")

    def _unusable(self, error: OSError) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"the in-memory engine cannot use {self._root}: {error.strerror or error}; it must be a directory that "
            "this user can write"
        )

    async def _locked(self) -> int:
        """Lock the root. The daemons of a killed process keep its lock until they have ended."""
        lock = os.open(self._root / "id", os.O_RDONLY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT_S):
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return lock
                    await asyncio.sleep(0.01)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, TimeoutError):
                raise SandboxUnavailable(f"another process has {self._root}; end it, or use another root") from None
            raise

    async def close(self) -> None:
        async with self._preparing:
            if self.lock >= 0:
                os.close(self.lock)
                self.lock = -1

    def make(self, owner: Owner, sandbox_id: str) -> tuple[Path, Path]:
        """Return an owner's directory, with its files and no temporary ones, and one for its sandbox's socket."""
        home, channel = self._path(owner), self._root / "tmp" / sandbox_id
        try:
            for directory in (home / "workspace", home / "tmp", channel):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SandboxUnavailable(f"no directory for a sandbox in {self._root}: {error.strerror}") from error
        return home.resolve(), channel.resolve()

    def owners(self, tenant: str | None = None) -> list[Owner]:
        of = "*" if tenant is None else digest(tenant)
        return sorted((path.parent.name, path.name) for path in self._root.glob(f"workspaces/{of}/*"))

    async def delete(self, owner: Owner) -> bool:
        """Delete an owner's files. They are moved away first, so a sandbox made meanwhile starts with none."""
        try:
            trash = self._trash(owner)
        except OSError as error:
            raise SandboxUnavailable(f"the files of a thread cannot be removed: {error.strerror}") from error
        if trash is not None:
            await asyncio.to_thread(remove_directory, trash)
        return trash is not None

    async def save(self, owner: Owner, take: Callable[[archive.Contents], _Value]) -> _Value | None:
        """Return what `take`, run in a thread, makes of an owner's files; None if there are none."""
        directory = self._path(owner) / "workspace"
        if not directory.exists():
            return None
        return await archive.streamed(lambda passing: take(passing(read_directory(directory))), _in_thread)

    async def replace(self, owner: Owner, give: Callable[[], archive.Contents]) -> None:
        """Replace an owner's files with what `give` yields; on failure the old files stay as they were."""
        fresh = self._root / "tmp" / f"new-{secrets.token_hex(8)}"
        place = self._path(owner)

        def fill(passing: archive.Passing) -> None:
            (fresh / "workspace").mkdir(mode=0o700, parents=True)
            fill_directory(fresh / "workspace", passing(give()))
            for directory in (fresh, fresh / "workspace"):
                directory.chmod(0o700)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

        done = [fresh]
        try:
            await archive.streamed(fill, _in_thread)
            # Awaits nothing: there are always the old files or the new ones.
            trash = self._trash(owner)
            try:
                fresh.rename(place)
            except OSError:
                if trash is not None:
                    trash.rename(place)
                raise
            if trash is not None:
                done.append(trash)
        except OSError as error:
            raise SandboxUnavailable(f"the files of this thread could not be written: {error.strerror}") from error
        finally:
            for directory in done:
                await asyncio.to_thread(remove_directory, directory)

    @contextmanager
    def alone(self, owner: Owner) -> Iterator[None]:
        """Save or replace an owner's files exclusively; SandboxBusy if another operation is in progress."""
        if owner in self._exclusive:
            raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
        self._exclusive.add(owner)
        try:
            yield
        finally:
            self._exclusive.discard(owner)

    def _trash(self, owner: Owner) -> Path | None:
        """Move an owner's files to the trash and return their new path; None if there are none."""
        trash = self._root / "tmp" / f"deleted-{secrets.token_hex(8)}"
        try:
            self._path(owner).rename(trash)
        except FileNotFoundError:
            return None
        return trash

    def _path(self, owner: Owner) -> Path:
        return self._root / "workspaces" / owner[0] / owner[1]


def _in_thread(work: Callable[[], _Value]) -> asyncio.Future[_Value]:
    return asyncio.ensure_future(asyncio.to_thread(work))
