"""The mounts of this sandbox, as the kernel lists them."""

from __future__ import annotations

import os
import re
import stat

from sandbox.v1 import channel_pb2 as wire

MOUNTS_LIMIT = 512
# Longer paths are cut, as no valid mount has one. All mounts together fit into a frame.
_PATH_BYTES = 1024
_TYPE_BYTES = 32
# null, zero, full, random, urandom and tty: writes to them do not leave the sandbox.
_HARMLESS_DEVICES = frozenset(os.makedev(*number) for number in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0)))
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def read_mounts(tool_uid: int, tool_groups: list[int]) -> list[wire.Mount]:
    """Return the first 512 mounts, including hidden ones."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = parse_mounts(file.read())
    for mount in found:
        mount.tool_writable = not mount.read_only and _writable(mount.path, tool_uid, tool_groups)
    return found


def parse_mounts(text: bytes) -> list[wire.Mount]:
    """Parse mountinfo, which does not say whether tool code may write."""
    found = []
    for line in text.splitlines()[:MOUNTS_LIMIT]:
        mount, _, file_system = line.partition(b" - ")
        fields = mount.split(b" ")
        kind, _, options = file_system.partition(b" ")
        flags = set(fields[5].split(b","))
        path = _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), fields[4])
        found.append(
            wire.Mount(
                path=path[:_PATH_BYTES].decode("utf-8", "replace"),
                type=kind[:_TYPE_BYTES].decode("utf-8", "replace"),
                read_only=b"ro" in flags or b"ro" in options.rpartition(b" ")[2].split(b","),
                no_suid=b"nosuid" in flags,
                no_dev=b"nodev" in flags,
                no_exec=b"noexec" in flags,
            )
        )
    return found


def _writable(path: str, uid: int, groups: list[int]) -> bool:
    """Return whether a user may write to the top of a mount, or can obtain that right."""
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return False  # tool code cannot reach it
    if stat.S_ISCHR(state.st_mode) and state.st_rdev in _HARMLESS_DEVICES:
        return False  # also files that /dev/null hides
    of_group = state.st_gid in groups and state.st_mode & stat.S_IWGRP
    return state.st_uid == uid or bool(of_group or state.st_mode & stat.S_IWOTH)
