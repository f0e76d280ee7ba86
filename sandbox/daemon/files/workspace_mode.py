"""The mode of the workspace's root: tool code owns it, and may lock itself out."""

import os
import stat

from sandbox.daemon.paths import real


def let_owner_in(workspace: str) -> None:
    """Give the tool user back what it took from itself at the top; the caller has its rights on files.

    What stays closed for another reason is told by the call that finds it so.
    """
    place = real(workspace)
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(place, mode | stat.S_IRWXU)
    except OSError:
        pass
