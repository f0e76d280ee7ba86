"""Starts one tool process. Runs in the tool spawner, which is single-threaded.

The C function behind subprocess does the fork, the change of user and the exec. subprocess itself would be a tenth of
the daemon's memory, and would track children that init has reaped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import termios
from _posixsubprocess import fork_exec
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox.daemon.supervisor.control_wire import call_gid
from sandbox.daemon.supervisor.landlock import REFER, REFER_VERSION, WRITE_FILE, landlock_version, restrict
from sandbox.daemon.supervisor.libc import libc

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

TOOL_UMASK = 0o022


class ToolIdentity:
    """The user of tool code, and whether it may install seccomp filters.

    A uid of -1 is this process' own user, who cannot give processes a group: call_mark() marks them instead.
    """

    __slots__ = ("gid", "own_filters", "uid")

    def __init__(self, uid: int, gid: int, *, own_filters: bool = False) -> None:
        self.uid = uid
        self.gid = gid
        self.own_filters = own_filters

    @property
    def contained(self) -> bool:
        return self.uid >= 0


def call_mark(session: int) -> bytes:
    """Return what precedes a call's number in the environment of its processes; `session` is the daemon's."""
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
    """Start a program in a new session; return its pid and a descriptor for the outcome of its exec.

    The descriptor ends without data once the program was executed, or killed before; error_number() reads other data.
    Poll it: tool code can stop the child before the exec, which may also wait for file leases. With `terminal`, stdio
    is a terminal that becomes the session's.
    """
    groups: list[int] | None = [call_gid(call)]
    if not tool.contained:
        groups, env = None, [*env, call_mark(os.getsid(0)) + b"%d" % call]
    reading, writing = os.pipe()
    directory = os.fsdecode(cwd) if not tool.contained or _is_open_to_all(cwd) else None

    def prepare() -> None:
        """Runs in the child as the tool user; the tool spawner has no threads that could hold a lock."""
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if directory is None:
            try:
                os.chdir(cwd)
            except OSError as error:
                os.write(writing, b"OSError:%x:" % (error.errno or errno.EIO))
                os._exit(255)

    try:
        pid = fork_exec(
            argv,
            _candidates(argv[0], env),
            True,  # close all other descriptors
            (writing,),
            directory,  # type: ignore[arg-type]  # None: not by fork_exec
            env,
            *(stdio[0], -1, -1, stdio[1], -1, stdio[2]),  # the child's ends; the parent's are elsewhere
            *(reading, writing),
            True,  # restore the signals that Python ignores
            True,  # new session
            -1,
            tool.gid,
            groups,
            tool.uid,
            TOOL_UMASK,
            # Only where needed: it doubles the time of a start.
            prepare if terminal or directory is None else None,  # type: ignore[arg-type]
            False,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, reading


def _is_open_to_all(directory: bytes) -> bool:
    """Return whether fork_exec may enter a directory, which it does before it changes the user."""
    # Root lacks the capability to enter a directory that tool code keeps private; and tool code must not enter one that
    # is open to root and its groups only.
    try:
        return bool(os.stat(directory).st_mode & stat.S_IXOTH)
    except OSError:
        return False


def _candidates(name: bytes, env: list[bytes]) -> list[bytes]:
    if b"/" in name:
        return [name]
    paths = [item[5:] for item in env if item.startswith(b"PATH=")]
    return [place + b"/" + name if place else name for place in (paths or [os.fsencode(os.defpath)])[-1].split(b":")]


def error_number(message: bytes) -> int:
    """Return the errno in the message of a failed exec: an exception's name, the errno in hex, a text."""
    _, _, rest = message.partition(b":")
    try:
        return int(rest.partition(b":")[0], 16) or errno.EIO
    except ValueError:
        return errno.EIO


def files_as_tool(tool: ToolIdentity, look: Callable[[], T]) -> T:
    """Return what `look` finds as the user that tool code has; only its view of files changes, nothing else."""
    call = libc()
    if call is None or not tool.contained:
        return look()
    gid, uid = call("setfsgid", tool.gid), call("setfsuid", tool.uid)
    try:
        return look()
    finally:
        call("setfsuid", uid)
        call("setfsgid", gid)


def drop_to_tool(tool: ToolIdentity, gid: int) -> None:
    """Make this process the tool user for good, as start() does, without executing anything."""
    signal.set_wakeup_fd(-1)
    os.umask(TOOL_UMASK)
    os.setgroups([gid])
    os.setresgid(tool.gid, tool.gid, tool.gid)
    os.setresuid(tool.uid, tool.uid, tool.uid)


# Above any score of the daemon: the kernel adds its size, in thousandths of the memory limit.
TOOL_OOM_SCORE_ADJ = 800
# A tenth of the daemon's CPU weight, which leaves room for `nice`. Between sandboxes the kernel divides CPU time by
# cgroup, so this costs tool code only what the daemon needs.
TOOL_NICE = 10


def lower_oom_priority() -> None:
    """Set tool code's OOM score and nice value for good; the posture shows whether the kernel lacks what that takes.

    Tool processes are killed first for memory, and yield the processor to the daemon. A process may lower its own OOM
    score again through /proc/self/oom_score_adj, and not every engine can withhold the capability for that. A Landlock
    domain, which children inherit, prevents it: no file under /proc can be opened for writing.
    """
    try:
        # A process may always raise its own score.
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"%d" % TOOL_OOM_SCORE_ADJ)
    except OSError:
        pass
    os.nice(TOOL_NICE)
    # Fails unless no_new_privs is set, which it is in every sandbox; the posture shows it.
    if landlock_version() >= REFER_VERSION:
        allowed = WRITE_FILE | REFER
        restrict(allowed, {b"/" + os.fsencode(name): allowed for name in os.listdir("/") if name != "proc"})
