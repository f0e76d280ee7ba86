"""`python -m sandbox.engines.local.local_daemon ROOT SOCKET_FD`: the daemon as a plain process of this machine.

It is the daemon that containers run, with init, tool spawner and server, but without the isolation: no separate user,
system call filter or priority for tool code. ROOT contains the directories that file calls know as /workspace and /tmp.
The first process, the guard, takes the place of the container: when the daemon ends or stdin is closed, it kills
everything that was started here.

Besides sandbox.daemon it imports only the standard library.
"""

import os
import select
import signal
import socket
import sys
import time

from sandbox.daemon import lazy_module
from sandbox.daemon.settings import Settings

_NO_USER = -1  # "no change" for setresuid()
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(root: str, descriptor: int) -> int:
    """Serve the directories of a root on a listening socket; return the exit status."""
    os.environ.pop("PYTHONPATH", None)  # programs must not inherit it
    lazy_module.install()
    from sandbox.daemon import paths
    from sandbox.daemon.__main__ import run
    from sandbox.daemon.supervisor import call_tree
    from sandbox.daemon.supervisor.libc import libc
    from sandbox.engines.local.local_tree import find_by_descent

    call = libc()
    if call is None or call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        print("airlock daemon: cannot start: this Python cannot ask the kernel for orphans (prctl)", file=sys.stderr)
        return 78
    listener = socket.socket(fileno=descriptor)
    pid = os.fork()
    if pid:
        listener.close()
        return _guard(pid)
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # only the guard would end it
    paths.serve_below(root)
    call_tree.find_with(find_by_descent)
    return run(listener, Settings("", "/workspace", (_NO_USER,) * 3))


def _guard(daemon: int) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
    poller = select.poll()
    poller.register(0, 0)  # hang-up only
    poller.register(os.pidfd_open(daemon), select.POLLIN)
    poller.poll()
    _kill_all()
    return 0


def _end(_number: int, _frame: object) -> None:
    _kill_all()
    os._exit(0)


def _kill_all() -> None:
    from sandbox.engines.local.local_tree import descendants

    deadline_s = time.monotonic() + 5.0
    while (left := descendants(os.getpid())) and time.monotonic() < deadline_s:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended, or changed its user
        time.sleep(0.002)


if __name__ == "__main__":
    os._exit(main(sys.argv[1], int(sys.argv[2])))
