"""New files of the daemon's own where tool code may do what it likes: outputs that were too large to hand over.

A file is made anew, for whatever had its name, and never through a link. What lies in the workspace's private directory
is hidden from git.
"""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault
from sandbox.daemon.files.walk import PRIVATE_NAME
from sandbox.daemon.paths import Place, components


def create_private_file(place: Place, workspace: str) -> int:
    """Return a descriptor, for writing, of a new and empty file at `place`. Raises Fault and OSError."""
    private = [*components(workspace), PRIVATE_NAME]
    if place.names[: len(private)] == private:
        _hide_from_git(workspace)
    try:
        os.unlink(place.name, dir_fd=place.directory_fd)
    except FileNotFoundError:
        pass
    return place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _hide_from_git(workspace: str) -> None:
    """Have git ignore the private directory. It is no reason to fail when it cannot be done."""
    try:
        with Place(f"{workspace}/{PRIVATE_NAME}/.gitignore") as place:
            fd = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.write(fd, b"*\n")
            except OSError:
                # A full disk. An empty one would be taken for done ever after.
                os.unlink(place.name, dir_fd=place.directory_fd)
            finally:
                os.close(fd)
    except (Fault, OSError):
        pass  # it is there, most of the time
