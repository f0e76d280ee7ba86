"""Where tool processes are born: a child of init that has the standing of tool code itself.

A process takes its out-of-memory score and its Landlock domain from its parent at the fork. Init must have neither:
with tool code's score it would be killed in its place, if only for the moment of a fork. So it keeps a child that has
both and forks siblings. Their parent is init, which reaps them as if they were its own. When the kernel kills the
nursery for memory, init makes another.
"""

import errno
import os
import signal
import socket
import struct
from collections.abc import Callable

from sandbox.daemon.control_wire import ORDER, ORDER_LIMIT_BYTES, PROBE, SPAWN_TTY, call_gid, decode_program
from sandbox.daemon.foreign import libc
from sandbox.daemon.launch import ToolIdentity, drop_to_tool, execute
from sandbox.daemon.standing import close_proc_to_writers, raise_score
from sandbox.daemon.tool_probe import describe_tool

MAX_DESCRIPTORS = 4
_DESCRIPTOR = struct.Struct("i")
_ANSWER = struct.Struct("ii")  # errno and 0, or 0 and a pid
_ERRNO = struct.Struct("i")

_CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000


class NurseryDied(OSError):
    """It was killed, and perhaps a program was started nevertheless."""


class Nursery:
    """Init's end: has programs started. Where there can be no nursery (gVisor) init forks them itself."""

    def __init__(self, tool: ToolIdentity) -> None:
        self._tool = tool
        self._line: socket.socket | None = None
        self._own_forks = False

    def prepare(self) -> None:
        """Make the nursery before it is needed, and see whether there can be one."""
        try:
            # Its first child is only born to see whose it is.
            os.waitpid(self._open(), 0)
        except OSError:
            self._own_forks = True

    def start(self, kind: int, call: int, fds: list[int]) -> int:
        """Carry out SPAWN, SPAWN_TTY or PROBE and return the pid of init's new child.

        OSError has the errno of whatever failed, exec included; NurseryDied when it is not known what was started.
        """
        if self._own_forks:
            return _bear(kind, call, fds, self._tool, _fork)
        order = ORDER.pack(kind, call, 0)
        try:
            self._send(order, fds)
        except (BrokenPipeError, ConnectionResetError):
            self._close()  # it was killed since the last order
            self._send(order, fds)
        return self._answer()

    def _send(self, order: bytes, fds: list[int]) -> None:
        if self._line is None:
            self._open()
        if self._line is not None:
            socket.send_fds(self._line, [order], fds)

    def _open(self) -> int:
        """Make the nursery and return the pid of its first child."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                if os.fork() == 0:
                    try:
                        _serve(theirs, self._tool)
                    finally:
                        os._exit(70)
            return self._answer()
        except OSError:
            self._close()
            raise

    def _answer(self) -> int:
        try:
            answer = self._line.recv(_ANSWER.size) if self._line is not None else b""
        except ConnectionResetError:
            answer = b""
        if len(answer) != _ANSWER.size:
            self._close()
            raise NurseryDied(errno.ENOMEM, os.strerror(errno.ENOMEM))
        number, pid = _ANSWER.unpack(answer)
        if number:
            raise OSError(number, os.strerror(number))
        return int(pid)

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _fork() -> int:
    """Fork a child of this process, init, with tool code's score, which it may lower again."""
    pid = os.fork()
    if pid == 0:
        raise_score()
    return pid


def _serve(line: socket.socket, tool: ToolIdentity) -> None:
    """Be the nursery until init closes the line."""
    call, number = libc(), _CLONE_NUMBERS.get(os.uname().machine)
    if call is None or number is None:
        return
    signal.set_wakeup_fd(-1)
    for handled in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, signal.SIG_DFL)
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    raise_score()
    close_proc_to_writers(call)

    def fork_sibling() -> int:
        pid = call("syscall", number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid < 0:
            _explain_refusal()
        return pid

    line.send(_answer_of(lambda: fork_sibling() or os._exit(0)))
    while True:
        order, fds = receive(line)
        if len(order) != ORDER.size:
            return
        kind, call_number, _ = ORDER.unpack(order)
        try:
            answer = _answer_of(lambda: _bear(kind, call_number, fds, tool, fork_sibling))  # noqa: B023
        finally:
            for fd in fds:
                os.close(fd)
        line.send(answer)


def _answer_of(work: Callable[[], int]) -> bytes:
    try:
        return _ANSWER.pack(0, work())
    except OSError as error:
        return _ANSWER.pack(error.errno or errno.EIO, 0)
    except Exception:  # a malformed order must not end the sandbox
        return _ANSWER.pack(errno.EINVAL, 0)


def _explain_refusal() -> None:
    """Raise the OSError of a refused fork, by way of one that keeps its errno."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _bear(kind: int, call: int, fds: list[int], tool: ToolIdentity, fork: Callable[[], int]) -> int:
    """Fork a tool process and return its pid once its program runs; OSError says why it does not."""
    first, *rest = fds
    reading, writing = os.pipe()
    try:
        pid = fork()
        if pid == 0:
            try:
                if kind == PROBE:
                    describe_tool(first, lambda: drop_to_tool(tool, call_gid(call)))
                else:
                    program = decode_program(os.pread(first, os.fstat(first).st_size, 0))
                    terminal = kind == SPAWN_TTY
                    execute(program, _stdio(rest, terminal=terminal), tool, call_gid(call), terminal=terminal)
            except OSError as error:
                os.write(writing, _ERRNO.pack(error.errno or errno.EIO))
            except Exception:
                os.write(writing, _ERRNO.pack(errno.EINVAL))
            finally:
                os._exit(127)
        os.close(writing)
        writing = -1
        said = os.read(reading, _ERRNO.size)  # nothing once the program has taken the child's place
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if len(said) == _ERRNO.size:
        (number,) = _ERRNO.unpack(said)
        raise OSError(number, os.strerror(number))
    return pid


def _stdio(fds: list[int], *, terminal: bool) -> tuple[int, int, int]:
    if terminal:
        (slave,) = fds
        return slave, slave, slave
    stdout, stderr, *stdin = fds
    return stdin[0] if stdin else os.open("/dev/null", os.O_RDONLY), stdout, stderr


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return an order and its descriptors, which are close-on-exec: nothing but its stdio may reach a program.

    Not socket.recv_fds: it drops the flags on Python 3.11.
    """
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * _DESCRIPTOR.size)
    data, ancillary, _, _ = control.recvmsg(ORDER_LIMIT_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % _DESCRIPTOR.size
            fds += (fd for (fd,) in _DESCRIPTOR.iter_unpack(content[:whole]))
    return data, fds
