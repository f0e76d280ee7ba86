"""Removes everything below /workspace: the one program of a container for a volume that the engine cannot remove.

An engine opens a descriptor for each level of a tree and has no more than its own limit of them. This holds a few,
however deep the tree is. Started as root, it works as the user that owns the workspace, which tool code's files are of.
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
    """Open a directory, with all rights in it for its owner."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        # By way of /proc, because a descriptor of a path alone cannot be changed.
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, _OWNER_ALL)
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main(sys.argv[1])
