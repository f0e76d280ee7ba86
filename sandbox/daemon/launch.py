"""Making of this process, just forked, a tool process. It never reads what tool code wrote."""

import errno
import fcntl
import os
import signal
import termios

from sandbox.daemon.standing import TOOL_NICE

TOOL_UMASK = 0o022
# Python ignores these; a program is to find them as they are everywhere.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class ToolIdentity:
    """As whom tool code runs."""

    __slots__ = ("gid", "uid")

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid


def execute(
    program: tuple[list[bytes], list[bytes], bytes],
    stdio: tuple[int, int, int],
    tool: ToolIdentity,
    gid: int,
    *,
    terminal: bool,
) -> None:
    """Become a program (argv, environment, working directory) of the tool user in a new session; else OSError.

    `gid` is the supplementary group that marks the call. With `terminal`, stdio is one that becomes the session's. All
    other descriptors are close-on-exec.
    """
    argv, env, cwd = program
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    os.setsid()
    os.nice(TOOL_NICE)
    drop_to_tool(tool, gid)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(cwd)
    _execute(argv, dict(item.split(b"=", 1) for item in env))


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Try the name in every directory of PATH, as a shell does."""
    name = argv[0]
    path = env.get(b"PATH", os.fsencode(os.defpath))
    places = [b""] if b"/" in name else [place + b"/" if place else b"" for place in path.split(b":")]
    refused: OSError | None = None
    for place in places:
        try:
            os.execve(place + name, argv, env)  # noqa: S606 - it is what this file is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def drop_to_tool(tool: ToolIdentity, gid: int) -> None:
    """Make this process the tool user for good."""
    signal.set_wakeup_fd(-1)
    os.umask(TOOL_UMASK)
    os.setgroups([gid])
    os.setresgid(tool.gid, tool.gid, tool.gid)
    os.setresuid(tool.uid, tool.uid, tool.uid)
