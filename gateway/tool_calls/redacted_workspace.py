"""A thread's files and shell as an agent's tools see them: pages and excerpts are redacted where they are cut.

A secret may cross the edge of a page or an excerpt. Each read therefore includes a margin, is redacted with it, and is
cut to the requested range. What was redacted here is marked so (agent.filesystem.Redacted), and the ring that redacts
results (gateway/redaction/hooks.py) does not scan it again.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from agent.filesystem import Redacted
from agent.tool_call import CallContext
from agent.tools.call_events import LiveOutput
from gateway.redaction.command_output import KeptRedaction, redacted_pieces
from gateway.redaction.finders import RedactionFailed
from gateway.redaction.patterns import compiled
from gateway.redaction.redactor import Redactor, mask_of
from gateway.tool_calls.thread_sandbox import CommandOptions, PythonOptions, ThreadSandbox
from sandbox.errors import SandboxError
from sandbox.interpreter.cell import CellResult
from sandbox.protocols import ExecResult, FileSystem, GrepMatch, GrepPage, LinesPage, OutputPiece, ProcessPage

# The limit of the daemon for both excerpts together.
_EXCERPTS_LIMIT_CHARS = 150_000
# grep cuts lines at 1,000 bytes, between characters.
_CUT_MATCH_BYTES = 994
_KEY_HEADER = "-----BEGIN [A-Z0-9 ]*PRIVATE KEY"
# Part of every line of a private key, however short its lines are.
_KEY_LINE = compiled(r"[A-Za-z0-9+/=]{4}")
_KEY_RUN = compiled(r"[A-Za-z0-9+/=]{4,}")
# The distance in lines between a key's header and its last line.
_KEY_LINES_LIMIT = 4096
_HEADERS_LIMIT = 1000
# Up to this many files are searched for headers one by one; for more, the whole search is repeated.
_FILES_LIMIT = 8
# A line has at most 1,000 bytes, so these are one piece of redaction.
_MATCHES_OF_A_TURN = 32
_CONTEXTS_LIMIT = 32
_CONTEXT_LINES = 2000
_CONTEXT_BYTES = 65_536
P = ParamSpec("P")
T = TypeVar("T")


def _as_it_is(
    method: Callable[Concatenate[FileSystem, P], Awaitable[T]],
) -> Callable[Concatenate[RedactedWorkspace, P], Coroutine[Any, Any, T]]:
    """Return a method that calls this one of the inner workspace."""

    async def unredacted(self: RedactedWorkspace, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = await getattr(self.inner, method.__name__)(*args, **options)
        return result

    return unredacted


@dataclass(frozen=True)
class RedactedWorkspace:
    """Satisfies agent.filesystem.FileSystem and agent.filesystem.Shell. Writes are not redacted."""

    inner: ThreadSandbox
    redactor: Redactor

    ls = _as_it_is(FileSystem.ls)
    """Lists a directory; names are redacted with the whole result."""
    stat = _as_it_is(FileSystem.stat)
    glob = _as_it_is(FileSystem.glob)
    write = _as_it_is(FileSystem.write)
    edit = _as_it_is(FileSystem.edit)
    """Edits the file itself; where the shown text is masked it does not match."""
    mkdir = _as_it_is(FileSystem.mkdir)
    remove = _as_it_is(FileSystem.remove)
    rename = _as_it_is(FileSystem.rename)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a file's bytes, read with a margin on both sides."""
        margin_bytes = self.redactor.margin_bytes
        start = max(0, offset - margin_bytes)
        wanted = None if length is None else offset - start + length + margin_bytes
        skip, left = offset - start, length
        async for shown in self._redacted(self.inner.read(path, offset=start, length=wanted)):
            piece, skip = shown[skip:][:left], max(0, skip - len(shown))
            left = None if left is None else left - len(piece)
            if piece:
                yield piece
            if left == 0:
                return

    async def _redacted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        stream = self.redactor.stream()
        async for chunk in chunks:
            yield await self.redactor.feed(stream, chunk)
        yield stream.flush()

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        page = await self.inner.read_lines(path, offset=offset, limit=limit, limit_bytes=limit_bytes)
        if not page.data or page.binary:
            return page
        return replace(page, data=Redacted(await self._within(path, page)))

    async def _within(self, path: str, page: LinesPage) -> bytes:
        start = max(0, page.next_byte - len(page.data))
        margin_bytes = self.redactor.margin_bytes
        before = await self._bytes(path, max(0, start - margin_bytes), min(start, margin_bytes))
        after = await self._bytes(path, page.next_byte, margin_bytes) if page.more or page.cut else b""
        return await self.redactor.within(before, page.data, after)

    async def _bytes(self, path: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        return b"".join([piece async for piece in self.inner.read(path, offset=offset, length=length)])

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Search contents; a line that may belong to a private key is redacted with the lines before it."""
        page = await self.inner.grep(path, pattern, include=include, offset=offset, limit=limit, timeout_s=timeout_s)
        shown = await self._lines(page.matches)
        paths = {match.path for match, data in zip(page.matches, shown, strict=True) if _KEY_LINE.search(data)}
        headers = await self._key_headers(paths, path, include, timeout_s) if paths else _NO_HEADERS
        contexts = _Contexts()
        for place, match in enumerate(page.matches):
            if place % _MATCHES_OF_A_TURN == _MATCHES_OF_A_TURN - 1:
                await asyncio.sleep(0)  # few lines are read in their file, and to mask the others takes no wait
            cut = _is_cut(match)
            if headers.may_reach(match, cut=cut) and _KEY_LINE.search(shown[place]) is not None:
                line = None if cut else await self._line_in_its_file(match, contexts)
                # Key-like runs are masked if the line cannot be read in its file, or the file has changed.
                same = line is not None and len(line) == len(shown[place].rstrip(b"\r"))
                shown[place] = line if line is not None and same else _without_key_runs(shown[place])
        matches = (
            replace(match, text=data.decode("utf-8", "surrogateescape"))
            for match, data in zip(page.matches, shown, strict=True)
        )
        return replace(page, matches=tuple(matches))

    async def _lines(self, matches: Sequence[GrepMatch]) -> list[bytes]:
        """Redact each match alone. More than one turn's matches are looked through off the event loop."""
        if len(matches) <= _MATCHES_OF_A_TURN:
            return [await self._line(match) for match in matches]
        lines: list[bytes] = []
        for start in range(0, len(matches), _MATCHES_OF_A_TURN):
            some = matches[start : start + _MATCHES_OF_A_TURN]
            clean = await self.redactor.work(self._clean, some)
            lines += [
                await self._line(match) if line is None else line for match, line in zip(some, clean, strict=True)
            ]
        return lines

    def _clean(self, matches: Sequence[GrepMatch]) -> list[bytes | None]:
        """Return the bytes of each match, None where it is cut or a secret is in it."""
        lines = [match.text.encode("utf-8", "surrogateescape") for match in matches]
        return [None if len(line) >= _CUT_MATCH_BYTES or self.redactor.finds(line) else line for line in lines]

    async def _line(self, match: GrepMatch) -> bytes:
        cut = _is_cut(match)
        data = match.text.encode("utf-8", "surrogateescape")
        return await self.redactor.redact(data, cut_start=cut, cut_end=cut)

    async def _key_headers(self, paths: Collection[str], path: str, include: str, timeout_s: float) -> _KeyHeaders:
        """Return where private keys begin in these files of a search."""
        few = len(paths) <= _FILES_LIMIT
        find = partial(self.inner.grep, pattern=_KEY_HEADER, limit=_HEADERS_LIMIT, timeout_s=timeout_s)
        try:
            pages = [await find(one) for one in paths] if few else [await find(path, include=include)]
        except (SandboxError, OSError):
            return _KeyHeaders({}, all_known=False)
        lines: dict[str, list[int]] = {}
        for found in sorted((found for page in pages for found in page.matches), key=lambda found: found.line):
            lines.setdefault(found.path, []).append(found.line)
        return _KeyHeaders(lines, all_known=not any(page.more for page in pages))

    async def _line_in_its_file(self, match: GrepMatch, contexts: _Contexts) -> bytes | None:
        """Return the line redacted within its file, without its line end; None if it cannot be read."""
        if (line := contexts.line(match)) is not None or contexts.read >= _CONTEXTS_LIMIT:
            return line
        contexts.read += 1
        try:
            page = await self.inner.read_lines(
                match.path, offset=max(0, match.line - 1), limit=_CONTEXT_LINES, limit_bytes=_CONTEXT_BYTES
            )
            data = await self._within(match.path, page)
        except (SandboxError, OSError):
            return None
        contexts.lines[match.path] = match.line, data.split(b"\n")
        return contexts.line(match)

    async def execute(
        self, command: str, *, context: CallContext | None = None, **options: Unpack[CommandOptions]
    ) -> ExecResult:
        """Run a command line; head and tail of a long output are fetched with a margin, and cut when redacted.

        The margin before the tail is always whole: a secret that the tail ends begins there. The margin after the head
        may be shorter, because a secret is recognised by its beginning.
        """
        margin_chars, asked = self.redactor.margin_bytes, options.copy()
        asked["tail_chars"] += margin_chars
        room_chars = max(options["head_chars"], _EXCERPTS_LIMIT_CHARS - asked["tail_chars"])
        asked["head_chars"] = min(options["head_chars"] + margin_chars, options["limit_chars"], room_chars)
        kept, on_output = KeptRedaction(self.redactor), options.get("on_output")
        live = asked["on_output"] = None if on_output is None else LiveOutput([kept], [on_output])
        cut = True
        try:
            done = await self.inner.execute(command, context=context, **asked)
            cut = done.outcome != "exited"
        finally:
            if live is not None:
                await live.end(cut=cut or done.evicted is not None)
        try:
            return await _shown(kept, done, options["head_chars"], options["tail_chars"], cut=cut)
        except RedactionFailed as failed:
            failed.outcome, failed.exit_code = done.outcome, done.exit_code
            raise

    async def run_python(
        self, code: str, *, context: CallContext | None = None, **options: Unpack[PythonOptions]
    ) -> CellResult:
        """Run code; what it writes is redacted here, where it is cut, and the rest with the whole result."""
        kept, on_output = KeptRedaction(self.redactor), options.get("on_output")
        live = None if on_output is None else LiveOutput([kept], [on_output])
        options["on_output"] = live
        cut = past_live = True
        try:
            done = await self.inner.run_python(code, context=context, **options)
            cut = done.outcome not in {"completed", "failed"}
            past_live = bool(done.left_out_bytes) or _size_bytes(done.output) > options["live_limit_bytes"]
        finally:
            if live is not None:
                await live.end(cut=cut or past_live)
        try:
            output = await redacted_pieces(kept, done.output, cut_end=cut or bool(done.left_out_bytes))
            tail = await redacted_pieces(kept, done.tail, cut_start=True, cut_end=cut)
        except RedactionFailed as failed:
            failed.outcome, failed.exit_code = done.outcome, done.exit_code
            raise
        return replace(done, output=output, tail=tail)


async def _shown(kept: KeptRedaction, done: ExecResult, head_chars: int, tail_chars: int, *, cut: bool) -> ExecResult:
    """Return what came of a command with its output redacted, as much of it as was asked for."""
    if done.evicted is None:
        return replace(done, output=await redacted_pieces(kept, done.output, cut_end=cut))
    if _size_bytes(done.output) + _size_bytes(done.tail) == done.output_bytes:
        # Head and tail are the whole output.
        head = tail = await redacted_pieces(kept, (*done.output, *done.tail), cut_end=cut)
    else:
        head = await redacted_pieces(kept, done.output, cut_end=True)
        tail = await redacted_pieces(kept, done.tail, cut_start=True, cut_end=cut)
    return replace(done, output=_first(head, head_chars), tail=_last(tail, tail_chars))


@dataclass(frozen=True)
class _KeyHeaders:
    """The lines where private keys begin, of each path in order; unless `all_known` there may be more."""

    lines: Mapping[str, Sequence[int]]
    all_known: bool

    def may_reach(self, match: GrepMatch, *, cut: bool) -> bool:
        """Return whether a line may belong to a key that begins above it, or before the shown part of a long line."""
        if not self.all_known:
            return True
        lines = self.lines.get(match.path, ())
        before = bisect_right(lines, match.line if cut else match.line - 1)
        return before > 0 and lines[before - 1] >= match.line - _KEY_LINES_LIMIT


@dataclass
class _Contexts:
    """Lines redacted within their files: the last read of each file, and the number of its first line."""

    read: int = 0
    lines: dict[str, tuple[int, list[bytes]]] = field(default_factory=dict)

    def line(self, match: GrepMatch) -> bytes | None:
        """Return the line of a match, None if it was not read."""
        start, lines = self.lines.get(match.path, (0, []))
        place = match.line - start
        return lines[place].rstrip(b"\r") if 0 <= place < len(lines) else None


_NO_HEADERS = _KeyHeaders({}, all_known=True)


def _without_key_runs(data: bytes) -> bytes:
    def mask(found: re.Match[bytes]) -> bytes:
        return mask_of("unread", 0, len(found.group()))

    masked: bytes = _KEY_RUN.sub(mask, data)
    return masked


def _is_cut(match: GrepMatch) -> bool:
    return len(match.text.encode("utf-8", "surrogateescape")) >= _CUT_MATCH_BYTES


def _size_bytes(pieces: Sequence[OutputPiece]) -> int:
    return sum(len(piece.data) for piece in pieces)


def _first(pieces: Sequence[OutputPiece], chars: int) -> tuple[OutputPiece, ...]:
    """Return the first characters; a byte that is no UTF-8 counts as one."""
    return _excerpt(pieces, chars, lambda text, left: text[:left])


def _last(pieces: Sequence[OutputPiece], chars: int) -> tuple[OutputPiece, ...]:
    """Return the last characters, likewise."""
    return _excerpt(pieces[::-1], chars, lambda text, left: text[max(0, len(text) - left) :])[::-1]


def _excerpt(pieces: Sequence[OutputPiece], chars: int, part: Callable[[str, int], str]) -> tuple[OutputPiece, ...]:
    kept: list[OutputPiece] = []
    for piece in pieces:
        if chars <= 0:
            break  # a program that alternates between its streams makes tens of thousands
        text = part(piece.data.decode("utf-8", "surrogateescape"), chars)
        chars -= len(text)
        kept.append(OutputPiece(piece.stream, Redacted(text.encode("utf-8", "surrogateescape"))))
    return tuple(piece for piece in kept if piece.data)


@dataclass(frozen=True)
class ProcessReader:
    """Reads the output of background processes, redacted: each page with the bytes around it."""

    sandbox: ThreadSandbox
    redactor: Redactor

    async def read(self, process_id: str, *, stderr: bool, offset: int, wait_s: float) -> ProcessPage:
        """Return a page up to what may be the start of a secret, which waits for more output or the stream's end.

        Where the page is nothing else, `wait_s` is also how long to wait for the first byte after it.
        """
        page = await self.sandbox.read_process(process_id, stderr=stderr, offset=offset, wait_s=wait_s)
        if self.redactor.idle or not page.data:
            return page
        margin_bytes = self.redactor.margin_bytes
        start = max(0, page.offset - margin_bytes)
        before, _ = await self._bytes(process_id, start, page.offset - start, stderr=stderr)
        after, end = b"", page.end
        if not end:
            after, end = await self._bytes(process_id, page.offset + len(page.data), margin_bytes, stderr=stderr)
        stream = self.redactor.stream()
        shown = await self.redactor.feed(stream, before + page.data + after)
        if end:
            shown += stream.flush()
        if len(before) < page.offset:
            shown = self.redactor.without_cut_start(shown)  # what came first is lost, or further away than any secret
        # Shorter than the page, or nothing, where its end is not known yet.
        known = shown[len(before) : len(before) + len(page.data)]
        if wait_s and not known:
            # The daemon has a byte at `offset`, so it would not wait there.
            await self.sandbox.read_process(
                process_id, stderr=stderr, offset=page.size_bytes, limit_bytes=1, wait_s=wait_s
            )
            return await self.read(process_id, stderr=stderr, offset=offset, wait_s=0)
        return replace(page, data=known)

    async def _bytes(self, process_id: str, offset: int, length: int, *, stderr: bool) -> tuple[bytes, bool]:
        """Return the bytes from `offset` that are there, and whether the stream ends with them."""
        data = b""
        while len(data) < length:
            page = await self.sandbox.read_process(
                process_id, stderr=stderr, offset=offset + len(data), limit_bytes=length - len(data), wait_s=0
            )
            if page.offset != offset + len(data):
                # Bytes in between are lost; what stands before the page is what comes after them.
                missing = page.offset - offset
                if missing >= length:
                    return b"", False
                offset, length, data = page.offset, length - missing, b""
            data += page.data
            if page.end or not page.data:
                return data, page.end
        return data, False
