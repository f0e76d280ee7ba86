"""The mode of the workspace's root, which tool code owns and may remove its own access to."""

import os
import stat

from sandbox.daemon.paths import real


def let_owner_in(workspace: str) -> None:
    """Restore the tool user's access to the root of its workspace, if possible."""
    place = real(workspace)
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(place, mode | stat.S_IRWXU)
    except OSError:
        pass
