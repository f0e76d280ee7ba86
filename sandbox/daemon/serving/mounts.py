"""What is mounted in this sandbox, as the kernel lists it."""

from __future__ import annotations

import os
import re
import stat

from sandbox.v1 import channel_pb2 as wire

MOUNTS_LIMIT = 512
# Beyond it a path is cut: it is then none that anybody asked for. Together the mounts stay well within a frame.
_PATH_BYTES = 1024
_TYPE_BYTES = 32
# null, zero, full, random, urandom and tty: what is written to them reaches nobody else.
_HARMLESS_DEVICES = frozenset(os.makedev(*number) for number in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0)))
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def read_mounts(tool_uid: int, tool_groups: list[int]) -> list[wire.Mount]:
    """Return the first 512 mounts, those that others were mounted over included."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = parse_mounts(file.read())
    for mount in found:
        mount.tool_writable = not mount.read_only and _writable(mount.path, tool_uid, tool_groups)
    return found


def parse_mounts(text: bytes) -> list[wire.Mount]:
    """Return what lines of mountinfo say; who may write there is not said in them."""
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
    """Whether a user may write at the top of a mount, or let itself do so; the server's own rights are no matter."""
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return False  # out of tool code's reach
    if stat.S_ISCHR(state.st_mode) and state.st_rdev in _HARMLESS_DEVICES:
        return False  # also what is hidden behind /dev/null
    of_group = state.st_gid in groups and state.st_mode & stat.S_IWGRP
    return state.st_uid == uid or bool(of_group or state.st_mode & stat.S_IWOTH)
