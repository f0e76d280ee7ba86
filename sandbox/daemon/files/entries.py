"""Converts stat results to the Entry of a reply."""

import os
import stat

from sandbox.v1 import channel_pb2 as wire

# The limit of a page of entries or matches, which must fit one frame.
PAGE_LIMIT_BYTES = 1024 * 1024


def entry_of(name: str, state: os.stat_result) -> wire.Entry:
    """Return the Entry of a path."""
    return wire.Entry(
        name=os.fsencode(name),
        type=_type_of(state.st_mode),
        size_bytes=state.st_size,
        mode=stat.S_IMODE(state.st_mode),
        modified_ns=max(min(state.st_mtime_ns, 2**63 - 1), -(2**63)),
    )


def _type_of(mode: int) -> wire.EntryType:
    if stat.S_ISREG(mode):
        return wire.ENTRY_TYPE_FILE
    if stat.S_ISDIR(mode):
        return wire.ENTRY_TYPE_DIRECTORY
    if stat.S_ISLNK(mode):
        return wire.ENTRY_TYPE_SYMLINK
    return wire.ENTRY_TYPE_OTHER
