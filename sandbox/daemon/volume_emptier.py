"""Removes everything below /workspace: the program of a container for a volume that the engine cannot remove.

The engine opens a descriptor for each level of a tree and fails at its limit. This opens a few, however deep the tree
is. Started as root, it switches to the owner of the workspace.
"""

import os
import stat
import sys

from sandbox.daemon.files.tree_files import empty_directory
from sandbox.daemon.paths import open_with_rights

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
    empty_directory(fd, opened=lambda parent_fd, name: open_with_rights(name, parent_fd, _OWNER_ALL)[0])


if __name__ == "__main__":
    main(sys.argv[1])
