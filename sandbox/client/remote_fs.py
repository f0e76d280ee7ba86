"""RemoteFS: the files of a sandbox, through its daemon. Satisfies agent.filesystem.FileSystem.

Methods raise FileError subclasses for what the sandbox's kernel refuses, and DaemonLost when the daemon misbehaves.
Paths, patterns and answers are validated on this side too; memory is bounded by one frame.
"""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sandbox.client import replies
from sandbox.client.arguments import OFFSET_LIMIT, checked_lines, checked_page, checked_path, checked_pattern
from sandbox.client.channel import Call, Channel
from sandbox.errors import DaemonLost, InvalidArgument, TooLarge
from sandbox.protocols import EditResult, EntriesPage, Entry, GrepPage, LinesPage
from sandbox.v1 import channel_pb2 as pb

_INLINE_BYTES = 1024 * 1024
_INPUT_BYTES = 512 * 1024
_CHUNK_BYTES = 512 * 1024
# The daemon reads whole chunks. A file system may give less at once, but a page, except where a file changes meanwhile.
_SHORT_CHUNK_BYTES, _SHORTER_CHUNKS = 4096, 1000
_EDIT_TEXT_BYTES = 512 * 1024
_GREP_TIMEOUT_S = 120

# Generous for a slow disk, but a caller does not wait forever.
_ANSWER_TIMEOUT_S = 30.0
_TREE_TIMEOUT_S = 120.0
# Above the daemon's own limit for removing, so that its answer arrives first.
_REMOVE_TIMEOUT_S = 660.0

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class RemoteFS:
    """Files in one sandbox. `file_limit_bytes` bounds a read without a length.

    `refuse_hard_links` makes the daemon refuse the content of files with more than one name, which a policy that
    distinguishes paths requires.
    """

    channel: Channel
    refuse_hard_links: bool = False
    file_limit_bytes: int = 2**40

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of a directory, sorted by name; 10,000 entries at most."""
        limit = checked_page(offset, limit)
        request = pb.Request(list=pb.ListRequest(path=checked_path(path), offset=offset, limit=limit))
        read = partial(replies.entries_page, limit=limit)
        return await self._query(request, "entries", read, timeout_s=_TREE_TIMEOUT_S)

    async def stat(self, path: str) -> Entry:
        """Describe one path; a symbolic link at its end is described, not followed."""
        path = checked_path(path)
        request = pb.Request(stat=pb.StatRequest(path=path))
        return await self._query(request, "entry", partial(replies.entry, name=path))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield `length` bytes from `offset`, or everything to the end, in pieces of 1 MiB at most."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument("offset and length are 0 or more")
        if max(offset, length or 0) > OFFSET_LIMIT:
            raise InvalidArgument(f"offset and length are {OFFSET_LIMIT:,} at most, which no file reaches")
        path = checked_path(path)
        wanted_bytes = self.file_limit_bytes if length is None else length
        if length == 0:
            length = 1  # 0 means "to the end" in the protocol; ask for a byte to find out whether the file is readable
        asked = pb.ReadRequest(path=path, offset=offset, length=length or 0)
        request = pb.Request(read=asked, refuse_hard_links=self.refuse_hard_links)
        got_bytes = chunks = 0
        waited_s = 0.0
        async with self.channel.call(request) as call:
            while True:
                started_s = time.monotonic()
                # The least rate of a stream, over the time that the gateway waits for it.
                allowed_s = _ANSWER_TIMEOUT_S + got_bytes / (64 * 1024) - waited_s
                piece = await call.receive_piece(timeout_s=max(allowed_s, 0.001))
                waited_s += time.monotonic() - started_s
                data, final = (piece, False) if isinstance(piece, bytes) else _read_bytes(*piece)
                if not final and not 0 < len(data) <= _CHUNK_BYTES:
                    raise DaemonLost("the sandbox daemon sent a chunk of a wrong size")
                got_bytes += len(data)
                chunks += 1
                if chunks > _SHORTER_CHUNKS + got_bytes // _SHORT_CHUNK_BYTES:
                    raise DaemonLost("the sandbox daemon sent a file in smaller chunks than it reads")
                if length is None and got_bytes > wanted_bytes:
                    raise TooLarge(f"{path} is larger than {wanted_bytes:,} bytes: read it in ranges")
                if length is not None and got_bytes > length:
                    raise DaemonLost("the sandbox daemon sent more bytes than were asked for")
                if data and wanted_bytes:
                    yield data
                if final:
                    return

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        limit = checked_lines(offset, limit, limit_bytes)
        asked = {"path": checked_path(path), "offset": offset, "limit": limit, "limit_bytes": limit_bytes}
        read = partial(replies.lines_page, limit=limit, limit_bytes=limit_bytes)
        return await self._query(pb.Request(read_lines=asked), "read_lines", read)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry:
        """Replace a file atomically; parents are made, an existing mode is kept."""
        path = checked_path(path)
        if isinstance(data, bytes):
            if len(data) <= _INLINE_BYTES:
                request = pb.Request(write={"path": path, "data": data, "inline": True})
                return await self._query(request, "entry", partial(replies.entry, name=path))
            data = _pieces(data)
        request = pb.Request(write=pb.WriteRequest(path=path), refuse_hard_links=self.refuse_hard_links)
        async with self.channel.call(request) as call:
            reply = await _upload(call, data)
            return replies.entry(reply.entry, path)

    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult:
        """Replace the first exact match of `old_text`, or every one; 512 KiB at most for each text."""
        if not old_text:
            raise InvalidArgument("old_text is empty: give the exact text to replace")
        if max(len(old_text), len(new_text)) > _EDIT_TEXT_BYTES:
            raise InvalidArgument(f"an edit takes at most {_EDIT_TEXT_BYTES:,} bytes of text: write the file instead")
        asked = pb.EditRequest(path=checked_path(path), old_text=old_text, new_text=new_text, replace_all=replace_all)
        return await self._query(pb.Request(edit=asked), "edit", partial(replies.converted, EditResult))

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Return a page of paths that match; * and ? stop at /, ** does not. Links are not followed."""
        limit = checked_page(offset, limit)
        path = checked_path(path)
        asked = pb.GlobRequest(path=path, pattern=checked_pattern(pattern), offset=offset, limit=limit)
        read = partial(replies.entries_page, limit=limit, under=path)
        return await self._query(pb.Request(glob=asked), "entries", read, timeout_s=_TREE_TIMEOUT_S)

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Return a page of lines that match a regular expression; binary files are skipped and counted."""
        limit = checked_page(offset, limit)
        path = checked_path(path)
        if not 0 < timeout_s <= _GREP_TIMEOUT_S:
            raise InvalidArgument(f"timeout_s is more than 0 and {_GREP_TIMEOUT_S} at most")
        asked = pb.GrepRequest(
            path=path,
            pattern=checked_pattern(pattern),
            include=checked_pattern(include) if include else "",
            offset=offset,
            limit=limit,
            timeout_ms=max(1, round(timeout_s * 1000)),
        )
        read = partial(replies.grep_page, limit=limit, under=path)
        return await self._query(pb.Request(grep=asked), "grep", read, timeout_s=timeout_s + _ANSWER_TIMEOUT_S)

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""
        await self._query(pb.Request(mkdir=pb.MkdirRequest(path=checked_path(path))), "entry", _nothing)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory. Millions of files take minutes, 10 at most; cancelling stops the removal."""
        asked = pb.RemoveRequest(path=checked_path(path), recursive=recursive)
        await self._query(pb.Request(remove=asked), "entry", _nothing, timeout_s=_REMOVE_TIMEOUT_S)

    async def rename(self, path: str, new_path: str) -> None:
        asked = pb.RenameRequest(path=checked_path(path), new_path=checked_path(new_path))
        await self._query(pb.Request(rename=asked), "entry", _nothing)

    async def _query(
        self, request: pb.Request, member: str, read: Callable[[Any], _Value], *, timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> _Value:
        request.refuse_hard_links = self.refuse_hard_links
        return await self.channel.query(request, member, read, timeout_s=timeout_s)


def _nothing(_entry: pb.Entry) -> None:
    """Ignore a reply that only confirms."""


def _read_bytes(member: str, reply: pb.Reply) -> tuple[bytes, bool]:
    if member == "failure":
        replies.raise_failure(reply.failure)
    if member not in ("chunk", "read"):
        raise DaemonLost(f"the sandbox daemon answered {member} where a chunk was due")
    return (reply.chunk.data, False) if member == "chunk" else (reply.read.data, True)


async def _upload(call: Call, data: AsyncIterable[bytes]) -> pb.Reply:
    """Send the input while listening: the daemon may refuse before it read everything, for lack of space say."""

    async def send() -> None:
        async for block in data:
            view = memoryview(block)
            for start in range(0, len(view), _INPUT_BYTES):
                await call.send_data(view[start : start + _INPUT_BYTES], timeout_s=_ANSWER_TIMEOUT_S)
        await call.send(pb.Input(end=True), timeout_s=_ANSWER_TIMEOUT_S)

    # An upload takes as long as its caller sends; each piece has a timeout of its own.
    receive = call.receive(timeout_s=24 * 3600.0)
    member, reply = await call.exchange(send(), receive, answer_timeout_s=_TREE_TIMEOUT_S)
    if member == "failure":
        replies.raise_failure(reply.failure)
    if member != "entry" or call.spoiled:
        raise DaemonLost(f"the sandbox daemon answered {member} to a write")
    return reply


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
