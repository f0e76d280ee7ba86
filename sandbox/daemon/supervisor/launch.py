"""How processes become their users: a tool process, which the tool spawner starts, its self-test, and the server.

start(), files_as_tool() and lower_oom_priority() run in the tool spawner, which has one thread, describe_tool() in a
child of it, and become_server() in the server before it serves. For start(), the C function behind subprocess does the
fork, the change of user and the exec. subprocess itself would be a tenth of the daemon's memory, and would track
children that init has reaped. In a sandbox start() is for a daemon without the bundle: see waiting_process.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import struct
import termios
from _posixsubprocess import fork_exec
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.control_wire import call_gid
from sandbox.daemon.supervisor.landlock import REFER, REFER_VERSION, WRITE_FILE, landlock_version, restrict
from sandbox.daemon.supervisor.libc import libc
from sandbox.daemon.supervisor.tool_filter import ALLOWED, PROGRAMS_ON_SOCKETS, install

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

TOOL_UMASK = 0o022


class ToolIdentity:
    """The user of tool code, and whether it may install seccomp filters and set extended attributes.

    A uid of -1 is this process' own user, who cannot give processes a group: call_mark() marks them instead.
    """

    __slots__ = ("attributes", "gid", "own_filters", "uid")

    def __init__(self, uid: int, gid: int, *, own_filters: bool = False, attributes: bool = True) -> None:
        self.uid = uid
        self.gid = gid
        self.own_filters = own_filters
        self.attributes = attributes

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


_PR_GET_NO_NEW_PRIVS = 39
_FAMILIES = 64  # more than Linux has
_NO_DESCRIPTOR = 2**30
_TYPES = (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


def describe_tool(output: int, daemon_socket: bytes, become_tool: Callable[[], None]) -> None:
    """Write /proc/self/status as the tool user to `output`, followed by more lines of the same form.

    OomScoreAdjMin is the lowest OOM score it can set, SocketClosed whether it cannot connect to the daemon's socket,
    SocketFamilies the families of sockets it can create, SocketPrograms and SeccompFilters whether it can install any,
    ExtendedAttributes whether it can set any. The kernel reports none of these, so they are tried out. NoNewPrivs is
    included because gVisor does not list it.
    """
    try:
        # Opened first: a process that changed its user without an exec may not open its own files in /proc.
        score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        score = -1  # no such file, or not writable for tool processes (lower_oom_priority())
    become_tool()
    lowest = _lowest_score(score) if score >= 0 else _own_score()
    with open("/proc/self/status", "rb") as file:
        report = file.read() + b"OomScoreAdjMin:\t%d\n" % lowest
    call = libc()
    if call is not None:
        report += b"NoNewPrivs:\t%d\n" % call("prctl", _PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
        report += b"SeccompFilters:\t%d\n" % install([ALLOWED])
    families = " ".join(str(family) for family in range(1, _FAMILIES) if _opens(family))
    report += b"SocketFamilies:\t%s\n" % families.encode()
    report += b"SocketPrograms:\t%d\n" % _takes_socket_program()
    report += b"ExtendedAttributes:\t%d\n" % _sets_attributes()
    os.write(output, report + b"SocketClosed:\t%d\n" % _is_closed(daemon_socket))


def _is_closed(path: bytes) -> bool:
    """Return whether this process is not permitted to connect; other failures do not count."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
    return False


def _opens(family: int) -> bool:
    for kind in _TYPES:
        try:
            socket.socket(family, kind).close()
            return True
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                return False  # whatever the type
    return False


def _takes_socket_program() -> bool:
    """Return whether any of the options reaches the kernel. None of the values is a valid program."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as tried:
        for option in PROGRAMS_ON_SOCKETS:
            try:
                tried.setsockopt(socket.SOL_SOCKET, option, 0)
            except OSError as error:
                if error.errno == errno.ENOPROTOOPT:
                    continue
            return True
    return False


def _sets_attributes() -> bool:
    """Return whether any of the calls reaches the kernel, which finds no file; the filter fails with EOPNOTSUPP."""
    for file, follows in (("", True), ("", False), (_NO_DESCRIPTOR, True)):
        try:
            os.setxattr(file, "user.airlock", b"", follow_symlinks=follows)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                continue
        return True
    return False


def _lowest_score(score: int) -> int:
    refused, taken = -1001, int(os.pread(score, 16, 0))  # the kernel has none below -1000
    while taken - refused > 1:
        middle = (taken + refused) // 2
        try:
            os.pwrite(score, b"%d" % middle, 0)
            taken = middle
        except OSError:
            refused = middle
    return taken


def _own_score() -> int:
    try:
        with open("/proc/self/oom_score_adj", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


_PR_SET_KEEPCAPS = 8
_SETUID_MASK = 1 << 7
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3 of the interface; this thread
_NO_CHANGE = -1  # setfsuid() changes nothing, and returns the current user

_Call = Callable[..., int]


# The group of the bundle's directory (Dockerfile), which init and the server can enter and tool code cannot. All
# sandboxes share its volume, so tool code could lock its files for other tenants, and watch their daemons open them.
BUNDLE_GID = 599_999_999


class NotSafe(OSError):
    """The kernel did not apply a required restriction to this process; str() names it."""


def become_server(settings: Settings) -> None:
    """Become the server's user for good, with tool code's rights on files only; raises NotSafe.

    Real, effective and saved user are the daemon's. The kernel compares those with the caller's, so tool code cannot
    signal, trace, limit, pin or slow down this process. File access is checked against a fourth one, the file system
    user, which is tool code's. The change also makes the process not dumpable, so tool code cannot read its /proc
    entries. Forked children inherit all of this.
    """
    os.umask(0o022)
    os.setgroups([BUNDLE_GID])
    os.setresgid(settings.tool_gid, settings.tool_gid, settings.tool_gid)
    call = libc()
    if call is not None and _files_as(call, settings.tool_uid):
        # Leaving root drops every capability, and setting the file system user requires one of them.
        call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setresuid(settings.daemon_uid, settings.daemon_uid, settings.daemon_uid)
        _set_capabilities(call, _SETUID_MASK)
        taken = _files_as(call, settings.tool_uid)
        _set_capabilities(call, 0)
        call("prctl", _PR_SET_KEEPCAPS, 0, 0, 0, 0)
        if not taken:
            raise NotSafe(f"the server could not take the rights of user {settings.tool_uid} on files")
    else:
        # gVisor has no file system user. It checks the effective user, also for who may slow this process down.
        os.setresuid(settings.daemon_uid, settings.tool_uid, settings.daemon_uid)
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":", 1) for line in file if b":" in line)
    for name in (b"CapPrm", b"CapEff"):
        if int(status[name], 16):
            raise NotSafe(f"the server would keep capabilities ({name.decode()} {status[name].decode().strip()})")


def _files_as(call: _Call, uid: int) -> bool:
    """Set the file system user; return whether it took effect, which setfsuid() does not report."""
    call("setfsuid", uid)
    return call("setfsuid", _NO_CHANGE) == uid


def _set_capabilities(call: _Call, mask: int) -> None:
    call("capset", _CAPABILITY_HEADER, struct.pack("=6I", mask, mask, 0, 0, 0, 0))
