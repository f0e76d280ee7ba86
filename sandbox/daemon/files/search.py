"""The searches glob and grep (grep.py), each in a child process with a time limit.

glob finds paths with the semantics of pathlib in Python 3.13, in sorted order: `*` and `?` match within one name,
including dotfiles; `**` as a component matches any number of directories, including none, and as the last one
everything. Symbolic links are found but not followed.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable

from sandbox.daemon.failures import invalid_argument, too_large
from sandbox.daemon.files import grep as grep_files
from sandbox.daemon.files.entries import Page, entry_of
from sandbox.daemon.files.slow_work import Emit, work_in_child
from sandbox.daemon.files.tree_files import check_limit
from sandbox.daemon.files.walk import Found, private_below, walk
from sandbox.daemon.paths import Place, join
from sandbox.v1 import channel_pb2 as wire

PATTERN_LIMIT_BYTES = 4096
_ANY_DEPTH = "**"

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
    if part == _ANY_DEPTH:
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
    unsearched = 0

    def miss() -> None:
        nonlocal unsearched
        unsearched += 1

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
    emit(wire.EntriesReply(total=page.total, more=page.full, unsearched=unsearched))


GLOB_TIMEOUT_S = 30.0
GREP_TIMEOUT_LIMIT_MS = 120_000
_PATTERN_LIMIT_BYTES = 64 * 1024
# A glob for one name, of 255 bytes at most, with room for classes.
_INCLUDE_LIMIT_BYTES = 16 * 1024


async def glob(request: wire.GlobRequest, workspace: str) -> wire.Reply:
    """Return a page of paths."""
    limit = check_limit(request.limit)

    def work(emit: Emit) -> None:
        check_pattern(request.pattern)
        emit_paths(request, limit, workspace, emit)

    reply = wire.EntriesReply()
    if not await work_in_child(work, reply, GLOB_TIMEOUT_S, request.path):
        raise too_large(
            f"{request.path}: the search took longer than {GLOB_TIMEOUT_S:.0f} s; search a smaller directory"
        )
    return wire.Reply(entries=reply)


async def grep(request: wire.GrepRequest, workspace: str, *, one_name: bool = False) -> wire.Reply:
    """Return a page of matches, as far as they are found within the time limit."""
    limit = check_limit(request.limit)
    if not request.pattern or len(request.pattern.encode()) > _PATTERN_LIMIT_BYTES:
        raise invalid_argument(f"pattern must have 1 to {_PATTERN_LIMIT_BYTES} bytes")
    if len(request.include.encode()) > _INCLUDE_LIMIT_BYTES:
        raise invalid_argument(f"include must have {_INCLUDE_LIMIT_BYTES} bytes at most; give a pattern such as *.py")
    if not 1 <= request.timeout_ms <= GREP_TIMEOUT_LIMIT_MS:
        raise invalid_argument(f"timeout_ms is {request.timeout_ms}; give 1 to {GREP_TIMEOUT_LIMIT_MS}")

    def work(emit: Emit) -> None:
        grep_files.grep(request, limit, workspace, emit, one_name=one_name)

    reply = wire.GrepReply()
    if not await work_in_child(work, reply, request.timeout_ms / 1000, request.path):
        reply.timed_out = True
        reply.more = True
    return wire.Reply(grep=reply)
