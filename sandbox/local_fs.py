"""LocalFS: the files of this machine, for tests and trusted use. Satisfies agent.filesystem.FileSystem.

It stands on the daemon's own rooms for paths, writing and searching, in this process, so both file systems mean the
same by every word. There is no sandbox here: what this process may, the caller may.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from sandbox import replies
from sandbox.arguments import checked_lines, checked_page, checked_path, checked_pattern
from sandbox.daemon import glob as globbing
from sandbox.daemon import grep as grepping
from sandbox.daemon import tree_files
from sandbox.daemon.entries import entry_of
from sandbox.daemon.failures import Fault, fault_of
from sandbox.daemon.paths import Place
from sandbox.daemon.read_files import read_lines as read_page
from sandbox.daemon.write_files import Replacement
from sandbox.errors import InvalidArgument, NotFound
from sandbox.filesystem import WORKSPACE, EditResult, EntriesPage, Entry, GrepPage, LinesPage
from sandbox.v1 import channel_pb2 as pb

_PIECE_BYTES = 1024 * 1024

_Value = TypeVar("_Value")


class _TimeIsUp(Exception):
    """The time limit of a search has passed."""


class LocalFS:
    """Files of this machine. With `root`, that directory stands at /workspace and nothing else can be reached."""

    def __init__(self, root: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        # The rooms below refuse links anywhere in a path, so the root is taken where it really is.
        self._root = str(root.resolve(strict=True)) if root is not None else None
        self._clock = clock

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of a directory, sorted by name; 10,000 entries at most."""
        limit = checked_page(offset, limit)
        real = self._real(path)

        def work() -> EntriesPage:
            with Place(real) as place:
                fd = place.open_listing()
            try:
                with os.scandir(fd) as listing:
                    names = sorted(entry.name for entry in listing)
                page = [
                    entry_of(name, os.stat(name, dir_fd=fd, follow_symlinks=False))
                    for name in names[offset : offset + limit]
                ]
            finally:
                os.close(fd)
            reply = pb.EntriesReply(entries=page, total=len(names), more=offset + limit < len(names))
            return replies.listed_page(reply, limit=limit)

        return await self._run(work)

    async def stat(self, path: str) -> Entry:
        """Describe one path; a symbolic link at its end is described, not followed."""
        real = self._real(path)
        reply = await self._run(lambda: tree_files.stat_path(pb.StatRequest(path=real)))
        return replies.entry(reply.entry, checked_path(path))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield `length` bytes from `offset`, or all to the end, in pieces of 1 MiB at most."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument("offset and length are 0 or more")
        real = self._real(path)

        def open_file() -> int:
            with Place(real) as place:
                return place.open_regular()[0]

        fd = await self._run(open_file)
        try:
            while length is None or length > 0:
                wanted = _PIECE_BYTES if length is None else min(_PIECE_BYTES, length)
                data = await asyncio.to_thread(os.pread, fd, wanted, offset)
                if not data:
                    return
                offset += len(data)
                length = None if length is None else length - len(data)
                yield data
        finally:
            os.close(fd)

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        """Return a page of lines; 1 MiB at most."""
        limit = checked_lines(offset, limit, limit_bytes)
        request = pb.ReadLinesRequest(path=self._real(path), offset=offset, limit=limit, limit_bytes=limit_bytes)
        try:
            reply = await read_page(request)
        except Fault as fault:
            self._raise(fault)
        return replies.lines_page(reply.read_lines, limit=limit, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry:
        """Replace a file atomically; parents are made, an existing mode is kept."""
        name = checked_path(path)
        real = self._real(path)

        def begin() -> tuple[Place, Replacement]:
            place = Place(real, make_parents=True)
            try:
                return place, Replacement(place)
            except BaseException:
                place.close()
                raise

        place, replacement = await self._run(begin)
        try:
            if isinstance(data, bytes):
                whole = data
                await self._run(lambda: replacement.write(whole))
            else:
                async for piece in data:
                    await self._run(lambda part=piece: replacement.write(part))  # type: ignore[misc]
            state = await self._run(replacement.take_place)
        finally:
            replacement.leave()
            place.close()
        return replies.entry(entry_of(name, state), name)

    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult:
        """Replace the first exact match of `old_text`, or every one."""
        if not old_text:
            raise InvalidArgument("old_text is empty: give the exact text to replace")
        real = self._real(path)

        def work() -> EditResult:
            with Place(real) as place:
                with os.fdopen(place.open_regular()[0], "rb") as file:
                    text = file.read()
                matches = text.count(old_text)
                replaced = matches if replace_all else min(matches, 1)
                if replaced:
                    replacement = Replacement(place)
                    try:
                        replacement.write(text.replace(old_text, new_text, replaced))
                        replacement.take_place()
                    finally:
                        replacement.leave()
                return EditResult(replaced, matches - replaced)

        return await self._run(work)

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of paths that match; * and ? stop at /, ** does not. Links are not followed."""
        limit = checked_page(offset, limit)
        pattern = checked_pattern(pattern)
        real = self._real(path)
        reply = pb.EntriesReply()

        def work() -> None:
            globbing.check_pattern(pattern)
            request = pb.GlobRequest(path=real, pattern=pattern, offset=offset, limit=limit)
            globbing.glob(request, limit, self._root or WORKSPACE, reply.MergeFrom)

        await self._run(work)
        for found in reply.entries:
            found.name = self._shown(found.name)
        return replies.globbed_page(reply, limit=limit, under=checked_path(path))

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Return a page of matching lines. The time limit is looked at after each match."""
        limit = checked_page(offset, limit)
        request = pb.GrepRequest(
            path=self._real(path),
            pattern=checked_pattern(pattern),
            include=checked_pattern(include) if include else "",
            offset=offset,
            limit=limit,
        )
        reply = pb.GrepReply()
        deadline_s = self._clock() + timeout_s

        def emit(fragment: pb.GrepReply) -> None:
            reply.MergeFrom(fragment)
            if self._clock() > deadline_s:
                raise _TimeIsUp

        def work() -> None:
            try:
                grepping.grep(request, limit, self._root or WORKSPACE, emit)
            except _TimeIsUp:
                reply.more = reply.timed_out = True

        await self._run(work)
        for match in reply.matches:
            match.path = self._shown(match.path)
        return replies.grep_page(reply, limit=limit, under=checked_path(path))

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""
        real = self._real(path)
        await self._run(lambda: tree_files.make_directory(pb.MkdirRequest(path=real)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory."""
        real = self._real(path)

        def work() -> None:
            with Place(real) as place:
                state = place.stat()
                try:
                    if not stat.S_ISDIR(state.st_mode):
                        os.unlink(place.name, dir_fd=place.directory_fd)
                    elif recursive:
                        shutil.rmtree(place.name, dir_fd=place.directory_fd)
                    else:
                        os.rmdir(place.name, dir_fd=place.directory_fd)
                except OSError as error:
                    raise fault_of(error, place.path) from None

        await self._run(work)

    async def rename(self, path: str, new_path: str) -> None:
        """Rename within one file system; a file at `new_path` is replaced."""
        request = pb.RenameRequest(path=self._real(path), new_path=self._real(new_path))
        await self._run(lambda: tree_files.rename(request))

    def _real(self, path: str) -> str:
        path = checked_path(path)
        if self._root is None:
            return path
        if path != WORKSPACE and not path.startswith(f"{WORKSPACE}/"):
            raise NotFound(f"{path} is not there: this file system has {WORKSPACE} only")
        return self._root + path.removeprefix(WORKSPACE)

    def _shown(self, real: bytes) -> bytes:
        return real if self._root is None else WORKSPACE.encode() + real.removeprefix(os.fsencode(self._root))

    def _raise(self, fault: Fault) -> NoReturn:
        failure = fault.failure()
        if self._root is not None:
            failure.message = failure.message.replace(self._root, WORKSPACE)
        replies.raise_failure(failure)

    async def _run(self, work: Callable[[], _Value]) -> _Value:
        try:
            return await asyncio.to_thread(work)
        except Fault as fault:
            self._raise(fault)
