"""A thread's files and shell as an agent's tools see them: what they read is redacted where it is cut into pages.

A secret may lie across two pages, or across the edge of an excerpt. So each read has a margin around it, is redacted
with it, and is cut down to what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, replace

from agent.filesystem import OnOutput
from gateway.calls.thread_sandbox import ThreadSandbox
from gateway.redaction.patterns import compiled
from gateway.redaction.redactor import Redactor
from sandbox.errors import SandboxError
from sandbox.filesystem import (
    EditResult,
    EntriesPage,
    Entry,
    ExecResult,
    GrepMatch,
    GrepPage,
    LinesPage,
    OutputPiece,
    OutputStream,
)

# The daemon sends no longer excerpts than these together.
_EXCERPTS_LIMIT_CHARS = 100_000
_MARGIN_CHARS = 8192
# A line that grep shows has 1,000 bytes; one about as long was cut, between characters.
_CUT_MATCH_BYTES = 994
# What a line of a private key looks like: whether it is one, the lines before it say.
_KEY_LINE = compiled(r"[A-Za-z0-9+/=]{40}")
_CONTEXTS_LIMIT = 32
_CONTEXT_LINE_BYTES = 65_536
# Looking through so much takes less than a thread's turn does.
_AT_ONCE_BYTES = 4096


@dataclass(frozen=True)
class RedactedWorkspace:
    """Satisfies agent.filesystem.FileSystem and agent.filesystem.Shell. What is written is written as it is."""

    inner: ThreadSandbox
    redactor: Redactor

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """List a directory; names are redacted with the whole result."""
        return await self.inner.ls(path, offset=offset, limit=limit)

    async def stat(self, path: str) -> Entry:
        """Describe a path."""
        return await self.inner.stat(path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a file's bytes, read with a margin on both sides."""
        margin_bytes = self.redactor.margin_bytes
        start = max(0, offset - margin_bytes)
        wanted = None if length is None else offset - start + length + margin_bytes
        stream = self.redactor.stream()
        skip, left = offset - start, length
        async for chunk in self.inner.read(path, offset=start, length=wanted):
            piece, skip = _after(stream.feed(chunk), skip)
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if left == 0:
                return
        piece, _ = _after(stream.flush(), skip)
        piece = piece if left is None else piece[:left]
        if piece:
            yield piece

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        """Read a page of lines, and the bytes around it."""
        page = await self.inner.read_lines(path, offset=offset, limit=limit, limit_bytes=limit_bytes)
        if not page.data or page.binary:
            return page
        return replace(page, data=await self._within(path, page, more=page.more or page.cut))

    async def _within(self, path: str, page: LinesPage, *, more: bool) -> bytes:
        start = max(0, page.next_byte - len(page.data))
        margin_bytes = self.redactor.margin_bytes
        before = await self._bytes(path, max(0, start - margin_bytes), min(start, margin_bytes))
        after = await self._bytes(path, page.next_byte, margin_bytes) if more else b""
        return self.redactor.within(before, page.data, after)

    async def _bytes(self, path: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        return b"".join([piece async for piece in self.inner.read(path, offset=offset, length=length)])

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry:
        """Replace a file atomically."""
        return await self.inner.write(path, data)

    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult:
        """Replace an exact match of what is in the file, which is not the text that was shown where that is masked."""
        return await self.inner.edit(path, old_text, new_text, replace_all=replace_all)

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Find paths."""
        return await self.inner.glob(path, pattern, offset=offset, limit=limit)

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Search contents; a line that may belong to a private key is looked at with the lines before it."""
        page = await self.inner.grep(path, pattern, include=include, offset=offset, limit=limit, timeout_s=timeout_s)
        matches: list[GrepMatch] = []
        contexts = 0
        for match in page.matches:
            data = match.text.encode("utf-8", "surrogateescape")
            cut = len(data) >= _CUT_MATCH_BYTES
            redacted = self.redactor.redact(data, cut_start=cut, cut_end=cut)
            if _KEY_LINE.search(redacted) is not None:
                contexts += 1
                redacted = await self._match_in_its_file(match, redacted, read=contexts <= _CONTEXTS_LIMIT and not cut)
            matches.append(replace(match, text=redacted.decode("utf-8", "surrogateescape")))
        return replace(page, matches=tuple(matches))

    async def _match_in_its_file(self, match: GrepMatch, data: bytes, *, read: bool) -> bytes:
        """Return the line as it looks within its file; without its key-like runs where that cannot be told."""
        if read:
            try:
                page = await self.inner.read_lines(
                    match.path, offset=max(0, match.line - 1), limit=1, limit_bytes=_CONTEXT_LINE_BYTES
                )
                line = await self._within(match.path, page, more=page.more or page.cut)
            except (SandboxError, OSError):
                line = b""
            line = line.rstrip(b"\r\n")
            if len(line) == len(data.rstrip(b"\r")):
                return line
        return self._without_key_lines(data)

    def _without_key_lines(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while (found := _KEY_LINE.search(data, at)) is not None:
            pieces += (data[at : found.start()], b"[redacted unread]".ljust(found.end() - found.start(), b"*"))
            at = found.end()
        return b"".join((*pieces, data[at:]))

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        await self.inner.mkdir(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a path."""
        await self.inner.remove(path, recursive=recursive)

    async def rename(self, path: str, new_path: str) -> None:
        """Rename a path."""
        await self.inner.rename(path, new_path)

    async def execute(
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command line; head and tail of a long output are asked for with a margin, and cut when redacted."""
        spare_chars = (min(limit_chars, _EXCERPTS_LIMIT_CHARS) - head_chars - tail_chars) // 2
        margin_chars = max(0, min(_MARGIN_CHARS, spare_chars))
        done = await self.inner.execute(
            command,
            timeout_s=timeout_s,
            call_id=call_id,
            limit_chars=limit_chars,
            head_chars=head_chars + margin_chars,
            tail_chars=tail_chars + margin_chars,
            on_output=on_output,
        )
        ended = done.outcome == "exited"
        if done.evicted is None and sum(len(piece.data) for piece in done.output) <= _AT_ONCE_BYTES:
            return replace(done, output=self._pieces(done.output, cut_end=not ended))
        # In a thread: the gateway serves others meanwhile, however long the output.
        if done.evicted is None:
            return replace(done, output=await asyncio.to_thread(self._pieces, done.output, cut_end=not ended))
        head = await asyncio.to_thread(self._pieces, done.output, cut_end=True)
        tail = await asyncio.to_thread(self._pieces, done.tail, cut_start=True, cut_end=not ended)
        return replace(done, output=_first(head, head_chars), tail=_last(tail, tail_chars))

    def _pieces(
        self, pieces: Sequence[OutputPiece], *, cut_start: bool = False, cut_end: bool = False
    ) -> tuple[OutputPiece, ...]:
        """Return the pieces, each stream redacted as one; sizes stay, so it comes apart again as it was."""
        streams: dict[OutputStream, bytes] = {}
        for stream in {piece.stream for piece in pieces}:
            whole = b"".join(piece.data for piece in pieces if piece.stream == stream)
            streams[stream] = self.redactor.redact(whole, cut_start=cut_start, cut_end=cut_end)
        redacted: list[OutputPiece] = []
        for piece in pieces:
            size_bytes = len(piece.data)
            redacted.append(OutputPiece(piece.stream, streams[piece.stream][:size_bytes]))
            streams[piece.stream] = streams[piece.stream][size_bytes:]
        return tuple(redacted)


def _after(piece: bytes, skip: int) -> tuple[bytes, int]:
    """Return the piece without its first `skip` bytes, and how many are still to be skipped."""
    return piece[skip:], max(0, skip - len(piece))


def _first(pieces: Sequence[OutputPiece], chars: int) -> tuple[OutputPiece, ...]:
    """Return the first characters; a byte that is no UTF-8 counts as one."""
    kept: list[OutputPiece] = []
    for piece in pieces:
        text = piece.data.decode("utf-8", "surrogateescape")[:chars]
        chars -= len(text)
        if text:
            kept.append(OutputPiece(piece.stream, text.encode("utf-8", "surrogateescape")))
    return tuple(kept)


def _last(pieces: Sequence[OutputPiece], chars: int) -> tuple[OutputPiece, ...]:
    """Return the last characters, likewise."""
    kept: list[OutputPiece] = []
    for piece in reversed(pieces):
        text = piece.data.decode("utf-8", "surrogateescape")
        text = text[len(text) - min(chars, len(text)) :]
        chars -= len(text)
        if text:
            kept.append(OutputPiece(piece.stream, text.encode("utf-8", "surrogateescape")))
    return tuple(kept[::-1])
