"""Entries of replies, and pages of entries and matches."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

from sandbox.v1 import channel_pb2 as wire

# The limit of a page of entries or matches, which must fit one frame.
PAGE_LIMIT_BYTES = 1024 * 1024
_TYPES = {
    stat.S_IFREG: wire.ENTRY_TYPE_FILE,
    stat.S_IFDIR: wire.ENTRY_TYPE_DIRECTORY,
    stat.S_IFLNK: wire.ENTRY_TYPE_SYMLINK,
}


class Page:
    """Emits the results of a page in fragments; `total` counts them, `full` is set by the first one beyond the page."""

    def __init__(self, offset: int, limit: int, emit: Callable[[Any], None]) -> None:
        self._offset = offset
        self._left = limit
        self._left_bytes = PAGE_LIMIT_BYTES
        self._emit = emit
        self.total = 0
        self.full = False

    def skip(self) -> bool:
        """Return whether the next result is before the page, and count it in that case."""
        before = self.total < self._offset
        self.total += before
        return before

    def add(self, fragment: Any) -> bool:
        """Emit a result, a protobuf message, unless the page is full; return whether it is not."""
        self.total += 1
        self._left_bytes -= fragment.ByteSize()
        self.full = not self._left or self._left_bytes < 0
        if not self.full:
            self._left -= 1
            self._emit(fragment)
        return not self.full


def entry_of(name: str, state: os.stat_result) -> wire.Entry:
    """Return the Entry of a path."""
    return wire.Entry(
        name=os.fsencode(name),
        type=_TYPES.get(stat.S_IFMT(state.st_mode), wire.ENTRY_TYPE_OTHER),
        size_bytes=state.st_size,
        mode=stat.S_IMODE(state.st_mode),
        modified_ns=max(min(state.st_mtime_ns, 2**63 - 1), -(2**63)),
    )
