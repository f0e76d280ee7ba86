"""LocalFS: the files of this machine, for tests and trusted use. Satisfies agent.filesystem.FileSystem.

It stands on the daemon's own rooms, in this process and in another (local_work.py), so both file systems mean the same
by every word and have the same bounds. There is no sandbox here: what this process may, the caller may.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from sandbox.arguments import (
    checked_edit,
    checked_lines,
    checked_page,
    checked_path,
    checked_pattern,
    checked_range,
    checked_timeout_ms,
)
from sandbox.client import replies
from sandbox.daemon.failures import Fault
from sandbox.daemon.files import tree_files
from sandbox.daemon.files.entries import entry_of
from sandbox.daemon.files.read_files import read_lines as read_page
from sandbox.daemon.files.replacement import Replacement
from sandbox.daemon.paths import Place
from sandbox.engines.local.local_work import work_elsewhere
from sandbox.errors import NotFound
from sandbox.filesystem import WORKSPACE, EditResult, EntriesPage, Entry, GrepPage, LinesPage
from sandbox.v1 import channel_pb2 as pb

_PIECE_BYTES = 1024 * 1024

_Value = TypeVar("_Value")


class LocalFS:
    """Files of this machine. With `root`, that directory stands at /workspace and nothing else can be reached.

    `refuse_hard_links` refuses the content of a file with more than one name, as RemoteFS does.
    """

    def __init__(self, root: Path | None = None, *, refuse_hard_links: bool = False) -> None:
        self._one_name = refuse_hard_links
        # The rooms below refuse links anywhere in a path, so the root is taken where it really is.
        self._root = str(root.resolve(strict=True)) if root is not None else None

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of a directory, sorted by name; 10,000 entries at most."""
        limit = checked_page(offset, limit)
        request = pb.ListRequest(path=self._real(path), offset=offset, limit=limit)
        reply = await self._elsewhere(pb.Request(list=request))
        return replies.listed_page(reply.entries, limit=limit)

    async def stat(self, path: str) -> Entry:
        """Describe one path; a symbolic link at its end is described, not followed."""
        real = self._real(path)
        reply = await self._run(lambda: tree_files.stat_path(pb.StatRequest(path=real)))
        return replies.entry(reply.entry, checked_path(path))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield `length` bytes from `offset`, or all to the end, in pieces of 1 MiB at most."""
        checked_range(offset, length)
        real = self._real(path)

        def open_file() -> tuple[int, os.stat_result]:
            with Place(real) as place:
                return place.open_regular(one_name=self._one_name)

        fd, state = await self._run(open_file)
        # What is appended while somebody reads is for the next read, or a file that grows would never end.
        left = max(0, state.st_size - offset)
        left = left if length is None else min(left, length)
        try:
            while left and (data := await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, left), offset)):
                offset += len(data)
                left -= len(data)
                yield data
        finally:
            os.close(fd)

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        """Return a page of lines; 1 MiB at most."""
        limit = checked_lines(offset, limit, limit_bytes)
        request = pb.ReadLinesRequest(path=self._real(path), offset=offset, limit=limit, limit_bytes=limit_bytes)
        reply = await self._answer(read_page(request, one_name=self._one_name))
        return replies.lines_page(reply.read_lines, limit=limit, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry:
        """Replace a file atomically; parents are made, an existing mode is kept."""
        name = checked_path(path)
        real = self._real(path)

        def begin() -> tuple[Place, Replacement]:
            place = Place(real, make_parents=True)
            try:
                return place, Replacement(place, one_name=self._one_name)
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
        """Replace the first exact match of `old_text`, or every one; 512 KiB at most for each text."""
        checked_edit(old_text, new_text)
        path = self._real(path)
        request = pb.EditRequest(path=path, old_text=old_text, new_text=new_text, replace_all=replace_all)
        reply = await self._elsewhere(pb.Request(edit=request))
        return replies.edit_result(reply.edit)

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of paths that match; * and ? stop at /, ** does not. Links are not followed."""
        limit = checked_page(offset, limit)
        pattern = checked_pattern(pattern)
        request = pb.GlobRequest(path=self._real(path), pattern=pattern, offset=offset, limit=limit)
        reply = await self._elsewhere(pb.Request(glob=request))
        for found in reply.entries.entries:
            found.name = self._shown(found.name)
        return replies.globbed_page(reply.entries, limit=limit, under=checked_path(path))

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Return a page of lines that match a regular expression; binary files are skipped and counted."""
        limit = checked_page(offset, limit)
        request = pb.GrepRequest(
            path=self._real(path),
            pattern=checked_pattern(pattern),
            include=checked_pattern(include) if include else "",
            offset=offset,
            limit=limit,
            timeout_ms=checked_timeout_ms(timeout_s),
        )
        reply = await self._elsewhere(pb.Request(grep=request))
        for match in reply.grep.matches:
            match.path = self._shown(match.path)
        return replies.grep_page(reply.grep, limit=limit, under=checked_path(path))

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""
        real = self._real(path)
        await self._run(lambda: tree_files.make_directory(pb.MkdirRequest(path=real)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory."""
        await self._elsewhere(pb.Request(remove=pb.RemoveRequest(path=self._real(path), recursive=recursive)))

    async def rename(self, path: str, new_path: str) -> None:
        """Rename within one file system; a file at `new_path` is replaced."""
        request = pb.RenameRequest(path=self._real(path), new_path=self._real(new_path))
        await self._answer(tree_files.rename(request))

    def _real(self, path: str) -> str:
        path = checked_path(path)
        if self._root is None:
            return path
        if path != WORKSPACE and not path.startswith(f"{WORKSPACE}/"):
            raise NotFound(f"{path} is not there: this file system has {WORKSPACE} only")
        return self._root + path.removeprefix(WORKSPACE)

    def _shown(self, real: bytes) -> bytes:
        return real if self._root is None else WORKSPACE.encode() + real.removeprefix(os.fsencode(self._root))

    def _raise(self, failure: pb.Failure) -> NoReturn:
        if self._root is not None:
            failure.message = failure.message.replace(self._root, WORKSPACE)
        replies.raise_failure(failure)

    async def _elsewhere(self, request: pb.Request) -> pb.Reply:
        """Return the reply of a room that forks for long work, which a time limit can kill, from a process for it."""
        reply = await work_elsewhere(request, self._root or WORKSPACE, one_name=self._one_name)
        if reply.HasField("failure"):
            self._raise(reply.failure)
        return reply

    async def _answer(self, answer: Awaitable[pb.Reply]) -> pb.Reply:
        """Return the reply of a room that itself sees to long work, in a thread."""
        try:
            return await answer
        except Fault as fault:
            self._raise(fault.failure())

    async def _run(self, work: Callable[[], _Value]) -> _Value:
        try:
            return await asyncio.to_thread(work)
        except Fault as fault:
            self._raise(fault.failure())
