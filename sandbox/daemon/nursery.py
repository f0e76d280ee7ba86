"""Where tool processes are born: a child of init that has the standing of tool code itself.

A process takes its out-of-memory score, its priority and its Landlock domain from its parent at the fork. Init must
have none of them: with tool code's score it would be killed in its place, if only for the moment of a fork. So it keeps
a child that has them, starts programs and tells of their ends. When the kernel kills the nursery for memory, its
children become init's own, as orphans do, and init makes another at the next start.

Init to nursery: (kind, call) of control_wire with descriptors, or (REAP, pid): a number stays its process' own until
init knows of the end. Nursery to init: (ANSWER, errno, 0), (ANSWER, 0, pid) or (ENDED, wait status, pid).
"""

import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from types import FrameType

from sandbox.daemon.control_wire import ORDER_LIMIT_BYTES, PROBE, SPAWN_TTY, call_gid, decode_program
from sandbox.daemon.launch import ToolIdentity, drop_to_tool, start
from sandbox.daemon.standing import take_low_standing
from sandbox.daemon.tool_probe import describe_tool

MAX_DESCRIPTORS = 4
_DESCRIPTOR = struct.Struct("i")
_REAP = 0
_REQUEST = struct.Struct("ii")  # kind and call, or _REAP and a pid
_ANSWER, _ENDED = 1, 2
_NEWS = struct.Struct("iii")


class NurseryDied(OSError):
    """It was killed, and perhaps a program was started nevertheless."""


class Nursery:
    """Init's end: has programs started and hears of their ends."""

    def __init__(self, tool: ToolIdentity) -> None:
        self._tool = tool
        self._line: socket.socket | None = None
        self._ended: list[tuple[int, int]] = []
        self._unreaped: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable when something ended, -1 when there is no nursery."""
        return self._line.fileno() if self._line is not None else -1

    def start(self, kind: int, call: int, fds: list[int]) -> int:
        """Carry out SPAWN, SPAWN_TTY or PROBE and return the new pid.

        OSError has the errno of whatever failed, exec included; NurseryDied when it is not known what was started.
        """
        request = _REQUEST.pack(kind, call)
        try:
            socket.send_fds(self._line or self.open(), [request], fds)
        except (BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.open(), [request], fds)  # it was killed since the last order
        while (news := self._read(0)) is not None:
            kind, value, pid = news
            if kind == _ENDED:
                self._ended.append((pid, value))
            elif value:
                raise OSError(value, os.strerror(value))
            else:
                return pid
        raise NurseryDied(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yield (pid, wait status) of each process that ended. Once the next is asked for, the pid may be another's."""
        while True:
            while self._ended:
                pid, status = self._ended.pop()
                yield pid, status
                self._unreaped.append(pid)
            self._reap()
            news = self._read(socket.MSG_DONTWAIT)
            if news is None:
                return
            _, status, pid = news
            self._ended.append((pid, status))

    def open(self) -> socket.socket:
        """Make a nursery in place of the one that is no more."""
        self._close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                try:
                    _become_nursery(theirs, self._tool)
                finally:
                    os._exit(70)
        self._line = ours
        return ours

    def _read(self, flags: int) -> tuple[int, int, int] | None:
        """Return the next news; None when there is none, or nobody any more to bring it."""
        if self._line is None:
            return None
        try:
            data = self._line.recv(_NEWS.size, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        if len(data) != _NEWS.size:
            self._close()
            return None
        kind, value, pid = _NEWS.unpack(data)
        return kind, value, pid

    def _reap(self) -> None:
        """Have them reaped, without ever waiting: the nursery might wait for its news to be read."""
        try:
            while self._line is not None and self._unreaped:
                self._line.send(_REQUEST.pack(_REAP, self._unreaped[-1]), socket.MSG_DONTWAIT)
                self._unreaped.pop()
        except BlockingIOError:
            pass  # at the next end
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        self._unreaped.clear()  # init's own children now


def _become_nursery(line: socket.socket, tool: ToolIdentity) -> None:
    """Be the nursery until init closes the line."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    take_low_standing()
    _Nursery(line, tool).serve()


class _Nursery:
    def __init__(self, line: socket.socket, tool: ToolIdentity) -> None:
        self._line = line
        self._tool = tool
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._children: set[int] = set()  # those whose end init has not been told

    def serve(self) -> None:
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        poller = select.poll()
        poller.register(wake_in, select.POLLIN)
        poller.register(self._line.fileno(), select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_in:
                    drain(wake_in)
                    self._tell_ends()
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        data, fds = receive(self._line)
        try:
            if len(data) != _REQUEST.size:
                return False
            kind, number = _REQUEST.unpack(data)
            if kind == _REAP:
                os.waitpid(number, 0)
            else:
                self._line.send(self._start(kind, number, fds))
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, kind: int, call: int, fds: list[int]) -> bytes:
        try:
            pid = self._probe(call, *fds) if kind == PROBE else self._spawn(call, *fds, terminal=kind == SPAWN_TTY)
        except OSError as error:
            return _NEWS.pack(_ANSWER, error.errno or errno.EIO, 0)
        except Exception:  # a malformed order must not end anything
            return _NEWS.pack(_ANSWER, errno.EINVAL, 0)
        self._children.add(pid)
        return _NEWS.pack(_ANSWER, 0, pid)

    def _spawn(self, call: int, program: int, *stdio: int, terminal: bool) -> int:
        argv, env, cwd = decode_program(os.pread(program, os.fstat(program).st_size, 0))
        if terminal:
            (slave,) = stdio
            return start(argv, env, cwd, (slave, slave, slave), self._tool, call_gid(call), terminal=True)
        stdout, stderr, *stdin = stdio
        given = (stdin[0] if stdin else self._null, stdout, stderr)
        return start(argv, env, cwd, given, self._tool, call_gid(call))

    def _probe(self, call: int, output: int) -> int:
        """Write what the kernel says of a process that became the tool user, in the form of /proc/PID/status."""
        pid = os.fork()
        if pid == 0:
            try:
                describe_tool(output, lambda: drop_to_tool(self._tool, call_gid(call)))
            finally:
                os._exit(0)
        return pid

    def _tell_ends(self) -> None:
        for pid in tuple(self._children):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._children.discard(pid)
                # As waitpid() would have it.
                exited = ended.si_code == os.CLD_EXITED
                self._line.send(_NEWS.pack(_ENDED, ended.si_status << 8 if exited else ended.si_status, pid))


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Signals must have a handler to wake the poll through the wakeup descriptor."""


def drain(fd: int) -> None:
    """Empty a pipe that only wakes."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


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
