"""The searches glob and grep, each in a child process with a time limit.

glob finds paths with the semantics of pathlib in Python 3.13, in sorted order: `*` and `?` match within one name,
including dotfiles; `**` as a component matches any number of directories, including none, and as the last one
everything. Symbolic links are found but not followed.

grep finds lines that match a Python regular expression, in files that are text. A line over 4 MiB is searched in pieces
that overlap by 64 KiB. Matches up to that size are found anywhere, ^ and $ match at the real start and end of the line
only, and the line is reported once. Longer matches may be missed.
"""

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial

from sandbox.daemon.failures import check_range, invalid_argument, too_large
from sandbox.daemon.files.slow_work import Emit, work_in_child
from sandbox.daemon.files.tree_files import ENTRIES_LIMIT, Found, Page, entry_of, private_below, walk
from sandbox.daemon.paths import Place, join, refuse_other_names, require_regular
from sandbox.v1 import channel_pb2 as wire

PATTERN_LIMIT_BYTES = 4096

Matcher = Callable[[str], object] | None  # None is **


class Pattern:
    """A parsed pattern. A set of positions in it is the state of matching a path."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        self.directories_only = pattern.endswith("/")
        self._matchers: list[Matcher] = [_matcher(part) for part in parts]

    def start(self) -> frozenset[int]:
        return self._past_any_depth({0})

    def step(self, positions: frozenset[int], name: str) -> frozenset[int]:
        after = set()
        for position in positions:
            if position == len(self._matchers):
                continue
            matcher = self._matchers[position]
            if matcher is None:
                after.add(position)
            elif matcher(name):
                after.add(position + 1)
        return self._past_any_depth(after)

    def complete(self, positions: frozenset[int]) -> bool:
        return len(self._matchers) in positions

    def may_go_on(self, positions: frozenset[int]) -> bool:
        return any(position < len(self._matchers) for position in positions)

    def _past_any_depth(self, positions: set[int]) -> frozenset[int]:
        result = set(positions)
        # Positions that were reached already are skipped, or a run of ** would take quadratic time.
        for position in sorted(positions):
            after = position
            while after < len(self._matchers) and self._matchers[after] is None and after + 1 not in result:
                after += 1
                result.add(after)
        return frozenset(result)


def _matcher(part: str) -> Matcher:
    if part == "**":
        return None
    if not any(character in part for character in "*?["):
        return part.__eq__
    return re.compile(fnmatch.translate(part)).match


def check_pattern(pattern: str) -> None:
    """Raise a Fault for an invalid pattern."""
    if not pattern or not pattern.strip("/."):
        raise invalid_argument("pattern is empty; give one such as **/*.py")
    if pattern.startswith("/"):
        raise invalid_argument(f"pattern {pattern!r} begins with /; give it relative to path, such as **/*.py")
    if "\0" in pattern or ".." in pattern.split("/"):
        raise invalid_argument(f'pattern {pattern!r} has NUL or a ".." component; search from another path instead')
    if len(pattern.encode("utf-8", "surrogateescape")) > PATTERN_LIMIT_BYTES:
        raise invalid_argument(f"pattern is longer than {PATTERN_LIMIT_BYTES} bytes")


def emit_paths(request: wire.GlobRequest, limit: int, workspace: str, emit: Emit) -> None:
    """Emit EntriesReply fragments: one per entry of the page, then the totals."""
    pattern = Pattern(request.pattern)
    with Place(request.path) as place:
        top_fd = place.open_listing()
        names = place.names
        top_state = os.fstat(top_fd)
    # The positions of each directory on the current path; the walk is depth-first.
    positions = [pattern.start()]
    page = Page(request.offset, limit, emit)
    totals = wire.EntriesReply()

    def miss() -> None:
        totals.unsearched += 1

    if pattern.complete(positions[0]) and not page.skip():
        page.add(wire.EntriesReply(entries=[entry_of(join(names), top_state)]))

    def enter(found: Found) -> bool:
        return pattern.may_go_on(positions[len(found.names)])

    for found in walk(top_fd, private_below(names, workspace), enter, miss, top=names):
        depth = len(found.names)
        after = pattern.step(positions[depth - 1], found.name)
        positions[depth:] = [after]
        if pattern.complete(after) and (found.is_directory or not pattern.directories_only) and not page.skip():
            try:
                entry = entry_of(join([*names, *found.names]), found.stat())
            except FileNotFoundError:
                continue  # removed since the listing
            if not page.add(wire.EntriesReply(entries=[entry])):
                break
    totals.total, totals.more = page.total, page.full
    emit(totals)


GLOB_TIMEOUT_S = 30.0


async def glob(request: wire.GlobRequest, workspace: str) -> wire.Reply:
    """Return a page of paths."""
    check_range("limit", request.limit, ENTRIES_LIMIT)
    check_pattern(request.pattern)
    work = partial(emit_paths, request, request.limit, workspace)
    reply = wire.EntriesReply()
    if not await work_in_child(work, reply, GLOB_TIMEOUT_S, request.path):
        raise too_large(
            f"{request.path}: the search took longer than {GLOB_TIMEOUT_S:.0f} s; search a smaller directory"
        )
    return wire.Reply(entries=reply)


_PATTERN_LIMIT_BYTES = 64 * 1024
# A glob for one name, of 255 bytes at most, with room for classes.
_INCLUDE_LIMIT_BYTES = 16 * 1024
TEXT_LIMIT_BYTES = 1000
# Longer lines are searched in pieces of this size, which bounds the memory for a hostile file.
_LINE_LIMIT_BYTES = 4 * 1024 * 1024
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def emit_matches(request: wire.GrepRequest, limit: int, workspace: str, emit: Emit, *, one_name: bool = False) -> None:
    """Emit GrepReply fragments: each match of the page as it is found, then the totals."""
    search = _Search(request, Page(request.offset, limit, emit), one_name=one_name)
    with Place(request.path) as place:
        names = place.names
        place.refuse_link(place.stat())
        fd = place.open(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    state = os.fstat(fd)
    if not stat.S_ISDIR(state.st_mode):
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
    search.totals.more = search.page.full
    emit(search.totals)


class _Search:
    def __init__(self, request: wire.GrepRequest, page: Page, *, one_name: bool) -> None:
        self._find = _finder(request.pattern)
        self._one_name = one_name
        self.page = page
        self.totals = wire.GrepReply()

    def miss(self) -> None:
        self.totals.unsearched += 1

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
                self.totals.hard_linked_files += 1
                return
            if b"\0" in os.pread(fd, 8192, 0):
                self.totals.binary_files += 1
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
        # Appended to a piece with a continuation, so that $ does not match at its end.
        match = compiled.search(text if ends else text + "\udcff", 0 if begins else 1)
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
    while block := os.read(fd, 1024 * 1024):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield number, line, begins, True
            begins = True
            number += 1
        if len(rest) >= _LINE_LIMIT_BYTES:
            yield number, rest, begins, False
            begins = False
            # At least the longest pattern, so that a literal is found across two pieces.
            rest = rest[-(64 * 1024) :]
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


async def grep(request: wire.GrepRequest, workspace: str, *, one_name: bool = False) -> wire.Reply:
    """Return a page of matches, as far as they are found within the time limit."""
    check_range("limit", request.limit, ENTRIES_LIMIT)
    if not request.pattern or len(request.pattern.encode()) > _PATTERN_LIMIT_BYTES:
        raise invalid_argument(f"pattern must have 1 to {_PATTERN_LIMIT_BYTES} bytes")
    if len(request.include.encode()) > _INCLUDE_LIMIT_BYTES:
        raise invalid_argument(f"include must have {_INCLUDE_LIMIT_BYTES} bytes at most; give a pattern such as *.py")
    check_range("timeout_ms", request.timeout_ms, 120_000)
    work = partial(emit_matches, request, request.limit, workspace, one_name=one_name)
    reply = wire.GrepReply()
    if not await work_in_child(work, reply, request.timeout_ms / 1000, request.path):
        reply.timed_out = True
        reply.more = True
    return wire.Reply(grep=reply)
