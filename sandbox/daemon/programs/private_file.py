"""Creates files of the daemon in directories that tool code controls: outputs that were too large to return.

A file replaces whatever had its name, and is never created through a link. The private directory is hidden from git.
"""

from __future__ import annotations

import os

from sandbox.daemon.failures import Fault
from sandbox.daemon.files.walk import PRIVATE_NAME
from sandbox.daemon.paths import Place, components


def create_private_file(place: Place, workspace: str) -> int:
    """Return a descriptor for writing a new file at `place`. Raises Fault and OSError."""
    private = [*components(workspace), PRIVATE_NAME]
    if place.names[: len(private)] == private:
        _hide_from_git(workspace)
    try:
        os.unlink(place.name, dir_fd=place.directory_fd)
    except FileNotFoundError:
        pass
    return place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _hide_from_git(workspace: str) -> None:
    """Make git ignore the private directory, if possible."""
    try:
        with Place(f"{workspace}/{PRIVATE_NAME}/.gitignore") as place:
            fd = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.write(fd, b"*\n")
            except OSError:
                # The disk is full. An empty file would never be completed.
                os.unlink(place.name, dir_fd=place.directory_fd)
            finally:
                os.close(fd)
    except (Fault, OSError):
        pass  # usually it exists
