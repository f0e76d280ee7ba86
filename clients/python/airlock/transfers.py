"""Files and directories of this machine to and from a thread's sandbox, in the Python client."""

import asyncio
import posixpath
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from os import DirEntry, PathLike, scandir
from pathlib import Path
from typing import TypeVar

from airlock.errors import InvalidArgument, InvalidPath, TooLarge
from airlock.files import FileCalls, FileEntry
from airlock.local_directory import LocalDirectory

T = TypeVar("T")
# Each holds a piece of at most half a MiB.
_AT_ONCE = 8
_DEPTH_LIMIT = 100  # of each level, a page of names is in memory
_WORKSPACE = "/workspace"


@dataclass(frozen=True)
class Transfer:
    """What was copied; `skipped` counts symbolic links, and files that are neither regular nor directories."""

    files: int
    size_bytes: int
    skipped: int


class TransferCalls(FileCalls):
    """Copies of files and directories, made of the calls of WorkspaceService: each file is judged and recorded."""

    async def upload(self, thread: str, source: str | PathLike[str], path: str = "") -> Transfer:
        """Copy a file or a directory of this machine to a path of the sandbox, by default /workspace/NAME.

        A directory's files are added to those that are there, and replace those of the same names. Symbolic links below
        `source` are not followed, and modes are not copied. A failure leaves what was copied until then. Raises OSError
        for a local file that cannot be read, and as write_file.
        """
        local = _absolute(source)
        target = path or posixpath.join(_WORKSPACE, local.name)
        if stat.S_ISREG((await asyncio.to_thread(local.stat)).st_mode):
            return Transfer(1, await self.write_file(thread, target, local), 0)
        if not await asyncio.to_thread(local.is_dir):
            raise InvalidArgument(f"source: {local} is neither a file nor a directory")
        sizes: list[int] = []
        skipped = 0

        async def copy(one: DirEntry[str]) -> None:
            place = posixpath.join(target, Path(one.path).relative_to(local).as_posix())
            if one.is_dir(follow_symlinks=False):
                await self.make_directory(thread, place)
            else:
                sizes.append(await self.write_file(thread, place, Path(one.path)))

        async def found() -> AsyncIterator[DirEntry[str]]:
            nonlocal skipped
            walked = _walked(local)
            while (one := await asyncio.to_thread(next, walked, None)) is not None:
                if one.is_dir(follow_symlinks=False) or one.is_file(follow_symlinks=False):
                    yield one
                else:
                    skipped += 1

        await self.make_directory(thread, target)
        await _each(found(), copy)
        return Transfer(len(sizes), sum(sizes), skipped)

    async def download(
        self, thread: str, path: str, target: str | PathLike[str] = "", *, limit_bytes: int = 4 * 1024**3
    ) -> Transfer:
        """Copy a file or a directory of the sandbox to this machine, by default to its name in the working directory.

        The sandbox is not trusted: nothing is written outside `target`, no symbolic link is copied or followed, of the
        modes only the execute bits are kept, and more than `limit_bytes` in all are TooLarge. A directory's files are
        added to those that are there. A file appears when it is whole. Raises OSError, InvalidPath for a name that
        leads elsewhere or a link in the way, and as read_file.
        """
        local = _absolute(target or posixpath.basename(path.rstrip("/")))
        entry = await self.stat_file(thread, path)
        copying = _Copying(self, thread, limit_bytes)
        if entry.kind == "file":
            directory = LocalDirectory(local.parent)
            try:
                await copying.copy(directory, local.name, path, entry)
            finally:
                directory.close()
        elif entry.kind == "directory":
            directory = LocalDirectory(local)
            try:
                await _each(copying.below(path), lambda one: copying.take(directory, path, one))
            finally:
                directory.close()
        else:
            raise InvalidPath(f"{path}: a file or a directory is expected, and it is neither ({entry.kind})")
        return Transfer(copying.files, copying.size_bytes, copying.skipped)


class _Copying:
    """A download under way: what it has copied, and how much more it may."""

    def __init__(self, calls: FileCalls, thread: str, limit_bytes: int) -> None:
        self._calls, self._thread, self._limit_bytes = calls, thread, limit_bytes
        self.files = self.size_bytes = self.skipped = 0

    async def below(self, path: str) -> AsyncIterator[tuple[str, FileEntry]]:
        """Yield the files and directories below a directory, each with its path relative to that."""
        levels = [("", self._calls.list_files(self._thread, path))]
        while levels:
            prefix, entries = levels[-1]
            entry = await anext(entries, None)
            if entry is None:
                levels.pop()
            elif entry.kind not in ("file", "directory"):
                self.skipped += 1
            else:
                name = prefix + entry.name
                yield name, entry
                if entry.kind == "directory":
                    if len(levels) == _DEPTH_LIMIT:
                        raise TooLarge(f"{path}: its directories are nested deeper than {_DEPTH_LIMIT}")
                    levels.append((f"{name}/", self._calls.list_files(self._thread, posixpath.join(path, name))))

    async def take(self, directory: LocalDirectory, path: str, found: tuple[str, FileEntry]) -> None:
        name, entry = found
        if entry.kind == "directory":
            await asyncio.to_thread(directory.make, name)
        else:
            await self.copy(directory, name, posixpath.join(path, name), entry)

    async def copy(self, directory: LocalDirectory, name: str, path: str, entry: FileEntry) -> None:
        """Copy one file to a name below a directory of this machine."""
        with directory.new_file(name, executable=bool(entry.mode & 0o111)) as file:
            async for piece in self._calls.stream_file(self._thread, path):
                self.size_bytes += len(piece)
                if self.size_bytes > self._limit_bytes:
                    raise TooLarge(f"{path}: more than {self._limit_bytes:,} bytes; raise limit_bytes if that is right")
                await asyncio.to_thread(file.write, piece)
        self.files += 1


def _absolute(path: str | PathLike[str]) -> Path:
    return Path(path).absolute()


def _walked(directory: Path) -> Iterator[DirEntry[str]]:
    """Yield the entries below a directory of this machine, a directory before what is in it."""
    with scandir(directory) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walked(Path(entry.path))


async def _each(items: AsyncIterator[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Work on the items, a few at once, taking each when there is room for it; the first failure ends all."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def worked(item: T) -> None:
        try:
            await work(item)
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            async for item in items:
                await room.acquire()
                tasks.create_task(worked(item))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
