"""Pid 1 of the namespaces that a test's own Docker engine runs in.

    unshare --net --mount --pid --fork --mount-proc python engine_holder.py COMMAND...

Each line on stdin has the command started once more, and is answered by a line. The end of stdin, and so the end of the
tests however they end, is the end of it all: the kernel kills every process of the namespace with its first one.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

# An engine would take the containerd of a machine that has one for its own, and its containers would be outside.
_OTHERS = Path("/run/containerd")


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(command: list[str]) -> None:
    """Serve until stdin ends."""
    if _OTHERS.is_dir():
        subprocess.run(["mount", "-t", "tmpfs", "none", str(_OTHERS)], check=True)
    # A handler, which no program inherits as it does a signal that is ignored: the engine waits for its children.
    signal.signal(signal.SIGCHLD, _reap)
    for _ in sys.stdin:
        os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
