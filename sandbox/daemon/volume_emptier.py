"""Removes everything below /workspace: the program of a container for a volume that the engine cannot remove.

The engine opens a descriptor for each level of a tree and fails at its limit. This opens a few, however deep the tree
is. Started as root, it switches to the owner of the workspace.
"""

from __future__ import annotations

import os
import stat
import sys

from sandbox.daemon.files.tree_files import empty_directory

_OWNER_ALL = stat.S_IRWXU


def main(top: str) -> None:
    """Empty a directory as its owner."""
    state = os.lstat(top)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(state.st_gid)
        os.setuid(state.st_uid)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.fchmod(fd, _OWNER_ALL)
    empty_directory(fd, opened=_opened)


def _opened(directory_fd: int, name: str) -> int:
    """Open a directory after giving its owner all rights to it."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        # Through /proc: fchmod() refuses an O_PATH descriptor.
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, _OWNER_ALL)
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main(sys.argv[1])
