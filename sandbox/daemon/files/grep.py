"""grep: lines that match a Python regular expression, in files that are text.

A line over 4 MiB is searched in pieces that overlap by 64 KiB. Matches up to that size are found anywhere, ^ and $
match at the real start and end of the line only, and the line is reported once. Longer matches may be missed.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator

from sandbox.daemon.failures import invalid_argument
from sandbox.daemon.files.entries import Page
from sandbox.daemon.files.slow_work import Emit
from sandbox.daemon.files.walk import Found, is_directory, private_below, walk
from sandbox.daemon.paths import Place, join, refuse_other_names, require_regular
from sandbox.v1 import channel_pb2 as wire

TEXT_LIMIT_BYTES = 1000
_BINARY_PROBE_BYTES = 8192
_BLOCK_BYTES = 1024 * 1024
# Longer lines are searched in pieces of this size, which bounds the memory for a hostile file.
_LINE_LIMIT_BYTES = 4 * 1024 * 1024
# At least the longest pattern, so that a literal is found across two pieces.
_OVERLAP_BYTES = 64 * 1024
# Appended to a piece with a continuation, so that $ does not match at its end.
_CONTINUES = "\udcff"
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def grep(request: wire.GrepRequest, limit: int, workspace: str, emit: Emit, *, one_name: bool = False) -> None:
    """Emit GrepReply fragments: each match of the page as it is found, then the totals."""
    search = _Search(request, limit, emit, one_name=one_name)
    with Place(request.path) as place:
        names = place.names
        state = place.stat()
        place.refuse_link(state)
        fd = place.open(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not is_directory(fd):
        state = os.fstat(fd)
        require_regular(state, join(names))
        if one_name:
            refuse_other_names(state, join(names))
        search.file(fd, join(names))
    else:
        included = re.compile(fnmatch.translate(request.include)).match if request.include else None
        for found in walk(fd, private_below(names, workspace), missed=search.miss, top=names):
            if not found.is_regular or (included and not included(found.name)):
                continue
            search.found(found, join([*names, *found.names]))
            if search.page.full:
                break
    emit(
        wire.GrepReply(
            more=search.page.full,
            binary_files=search.binary_files,
            hard_linked_files=search.hard_linked_files,
            unsearched=search.unsearched,
        )
    )


class _Search:
    def __init__(self, request: wire.GrepRequest, limit: int, emit: Emit, *, one_name: bool) -> None:
        self._find = _finder(request.pattern)
        self.page = Page(request.offset, limit, emit)
        self._one_name = one_name
        self.binary_files = 0
        self.hard_linked_files = 0
        self.unsearched = 0

    def miss(self) -> None:
        self.unsearched += 1

    def found(self, found: Found, path: str) -> None:
        """Search a file of the tree; an unreadable one is counted, a removed one is not."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(found.name, flags, dir_fd=found.directory_fd)
        except FileNotFoundError:
            return
        except OSError:
            self.miss()
            return
        self.file(fd, path)

    def file(self, fd: int, path: str) -> None:
        try:
            if self._one_name and os.fstat(fd).st_nlink > 1:
                self.hard_linked_files += 1
                return
            if b"\0" in os.pread(fd, _BINARY_PROBE_BYTES, 0):
                self.binary_files += 1
                return
            reported = 0
            for number, line, begins, ends in _lines(fd):
                if number == reported:
                    continue  # another piece of that line
                span = self._find(line, begins, ends)
                if span is None:
                    continue
                if not self._report(path, number, line, span):
                    return
                reported = number
        except OSError:
            self.miss()  # cannot be read to the end; what was found stays
        finally:
            os.close(fd)

    def _report(self, path: str, number: int, line: bytes, span: tuple[int, int]) -> bool:
        if self.page.skip():
            return True
        match = wire.GrepMatch(path=os.fsencode(path), line=number, text=_around(line, span))
        return self.page.add(wire.GrepReply(matches=[match]))


def _finder(pattern: str) -> Callable[[bytes, bool, bool], tuple[int, int] | None]:
    """Return a function that takes a piece of a line, and whether it starts and ends it, and finds the first match."""
    if not _SPECIAL.search(pattern):
        needle = pattern.encode("utf-8", "surrogateescape")

        def find_literal(line: bytes, _begins: bool, _ends: bool) -> tuple[int, int] | None:
            at = line.find(needle)
            return None if at < 0 else (at, at + len(needle))

        return find_literal
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise invalid_argument(
            f"pattern {pattern[:200]!r} is no regular expression: {error.msg}{where}; escape special characters with \\"
        ) from None
    except (OverflowError, RecursionError) as error:
        raise invalid_argument(f"pattern {pattern[:200]!r} is too complex: {error}") from None

    def find(line: bytes, begins: bool, ends: bool) -> tuple[int, int] | None:
        text = line.decode("utf-8", "surrogateescape")
        # ^ matches at the start of the text, not where the search starts.
        match = compiled.search(text if ends else text + _CONTINUES, 0 if begins else 1)
        if match is None or (not ends and match.start() >= len(text)):
            return None
        start = len(text[: match.start()].encode("utf-8", "surrogateescape"))
        return start, start + len(match.group().encode("utf-8", "surrogateescape"))

    return find


def _lines(fd: int) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yield (number from 1, line without its end, begins, ends), the latter two for pieces of a very long line."""
    # A piece that does not begin its line repeats the last 64 KiB of the previous one.
    number = 1
    begins = True
    rest = b""
    while block := os.read(fd, _BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield number, line, begins, True
            begins = True
            number += 1
        if len(rest) >= _LINE_LIMIT_BYTES:
            yield number, rest, begins, False
            begins = False
            rest = rest[-_OVERLAP_BYTES:]
    if rest:
        yield number, rest, begins, True


def _around(line: bytes, span: tuple[int, int]) -> bytes:
    """Return at most 1,000 bytes of a line around the match, without splitting characters."""
    line = line.removesuffix(b"\r")
    if len(line) <= TEXT_LIMIT_BYTES:
        return line
    start = max(0, min(span[0] - TEXT_LIMIT_BYTES // 4, len(line) - TEXT_LIMIT_BYTES))
    end = start + TEXT_LIMIT_BYTES
    for _ in range(3):
        start += start < end and line[start] & 0xC0 == 0x80
        end -= end < len(line) and end > start and line[end] & 0xC0 == 0x80
    return line[start:end]
