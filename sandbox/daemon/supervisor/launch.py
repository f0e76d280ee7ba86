"""Making one tool process. Runs in the nursery, which is single-threaded.

The fork, the switch of user and the exec are done in C by what subprocess stands on. subprocess itself would be a
tenth of the daemon's memory, and would keep books on children that init has reaped.
"""

import errno
import fcntl
import os
import signal
import stat
import termios
from _posixsubprocess import fork_exec

from sandbox.daemon.supervisor.control_wire import call_gid

TOOL_UMASK = 0o022


class ToolIdentity:
    """As whom tool code runs, and whether it may install seccomp filters of its own.

    A uid of -1 is this process' own user, who cannot give a call's processes a group: call_mark() marks them.
    """

    __slots__ = ("gid", "own_filters", "uid")

    def __init__(self, uid: int, gid: int, *, own_filters: bool = False) -> None:
        self.uid = uid
        self.gid = gid
        self.own_filters = own_filters

    @property
    def contained(self) -> bool:
        """Whether tool code has a user of its own."""
        return self.uid >= 0


def call_mark(session: int) -> bytes:
    """Return what stands before a call's number in the environment of its processes; `session` is the daemon's."""
    return b"AIRLOCK_CALL=%d/" % session


def start(
    argv: list[bytes],
    env: list[bytes],
    cwd: bytes,
    stdio: tuple[int, int, int],
    tool: ToolIdentity,
    call: int,
    *,
    terminal: bool = False,
) -> tuple[int, int]:
    """Begin a program in a new session; return its pid and a descriptor that tells whether it became its program.

    That one ends without a byte once it has, or was killed before; refusal() reads what else it says. Nobody waits for
    it here: from the change of user to the exec the newborn is tool code's to stop, and an exec waits for a lease.
    With `terminal`, stdio is one that becomes the session's.
    """
    groups: list[int] | None = [call_gid(call)]
    if not tool.contained:
        groups, env = None, [*env, call_mark(os.getsid(0)) + b"%d" % call]
    stdin, stdout, stderr = stdio
    reading, writing = os.pipe()

    directory = os.fsdecode(cwd) if not tool.contained or _is_open_to_all(cwd) else None

    def settle() -> None:
        """Run by the newborn as the tool user in the new session; the nursery has no threads that could hold a lock."""
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if directory is None:
            try:
                os.chdir(cwd)
            except OSError as error:
                os.write(writing, b"OSError:%x:" % (error.errno or errno.EIO))
                os._exit(255)

    try:
        try:
            pid = fork_exec(
                argv,
                _candidates(argv[0], env),
                True,  # close all descriptors but these
                (writing,),
                directory,  # type: ignore[arg-type]  # None: not by fork_exec
                env,
                *(stdin, -1, -1, stdout, -1, stderr),  # theirs and ours of each pipe; ours are elsewhere
                *(reading, writing),
                True,  # signals that Python ignores are as they are everywhere
                True,  # in a new session
                -1,
                tool.gid,
                groups,
                tool.uid,
                TOOL_UMASK,
                # It doubles the time of a start, so only where it is needed.
                settle if terminal or directory is None else None,  # type: ignore[arg-type]
                False,
            )
        finally:
            os.close(writing)
    except BaseException:
        os.close(reading)
        raise
    return pid, reading


def _is_open_to_all(directory: bytes) -> bool:
    """Return whether fork_exec may enter it for the newborn, which it does before it changes the user.

    Root has no power over other people's directories here, and could not enter one that tool code keeps to itself; and
    where only root and its groups may, tool code is not to be.
    """
    try:
        return bool(os.stat(directory).st_mode & stat.S_IXOTH)
    except OSError:
        return False


def _candidates(name: bytes, env: list[bytes]) -> list[bytes]:
    """Return what to try to execute: the name itself, or in each directory of PATH."""
    if b"/" in name:
        return [name]
    paths = [item[5:] for item in env if item.startswith(b"PATH=")]
    return [place + b"/" + name if place else name for place in (paths or [os.fsencode(os.defpath)])[-1].split(b":")]


def refusal(said: bytes) -> int:
    """Return the errno in what a newborn says that could not execute: an exception's name, the errno in hex, a text."""
    _, _, rest = said.partition(b":")
    try:
        return int(rest.partition(b":")[0], 16) or errno.EIO
    except ValueError:
        return errno.EIO


def drop_to_tool(tool: ToolIdentity, gid: int) -> None:
    """Make this process the tool user for good, as start() does, without executing anything."""
    signal.set_wakeup_fd(-1)
    os.umask(TOOL_UMASK)
    os.setgroups([gid])
    os.setresgid(tool.gid, tool.gid, tool.gid)
    os.setresuid(tool.uid, tool.uid, tool.uid)
