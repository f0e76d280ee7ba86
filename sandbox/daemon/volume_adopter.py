"""Gives the files of a copied volume to the user of their new sandbox, without what an archive of them would not have.

The program of a container that runs before that volume's first sandbox: nothing else uses it yet. Started as root,
with the right to pass any mode and to give files away. What it leaves is what `files/archive.py` would have written:
devices, pipes, sockets and what is deeper than a path can be long are gone, as are bits of modes and extended
attributes.
"""

import errno
import os
import resource
import stat
import sys

from sandbox.daemon.files.archive import PERMISSIONS, is_deepest, is_kept, is_stripped, walk_tree
from sandbox.daemon.files.tree_files import empty_directory
from sandbox.daemon.paths import closing

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The root lets its sandbox in, as in the gateway's workspace_archive.py.
_ROOT_MODE = 0o711


def main(top: str, user: int, group: int) -> None:
    """Adopt everything in a directory."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one for each level of the tree
    with closing(os.open(top, _DIRECTORY)) as root:
        for directory, name, path, state in walk_tree(root):
            if not is_kept(state):
                os.unlink(name, dir_fd=directory)
                continue
            if stat.S_ISDIR(state.st_mode) and is_deepest(path):
                with closing(os.open(name, _DIRECTORY, dir_fd=directory)) as deepest:
                    empty_directory(deepest)
            if not stat.S_ISLNK(state.st_mode):
                _without_attributes(f"/proc/self/fd/{directory}/{name}")
                if is_stripped(state):
                    os.chmod(name, stat.S_IMODE(state.st_mode) & PERMISSIONS, dir_fd=directory)
            os.chown(name, user, group, dir_fd=directory, follow_symlinks=False)
        _without_attributes(root)
        os.fchown(root, user, group)
        os.fchmod(root, stat.S_IMODE(os.fstat(root).st_mode) & PERMISSIONS | _ROOT_MODE)


def _without_attributes(place: str | int) -> None:
    """Remove extended attributes, but for those of the kernel, of which tool code can have made none."""
    try:
        names = os.listxattr(place)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return
        raise
    for name in names:
        if not name.startswith(("security.", "trusted.")):
            try:
                os.removexattr(place, name)
            except OSError as error:
                # To remove one list of access can remove the other.
                if error.errno != errno.ENODATA:
                    raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
