"""Where tool processes are born: a child of init that has the standing of tool code itself.

A process takes its out-of-memory score, its priority and its Landlock domain from its parent at the fork. Init must
have none of them: with tool code's score it would be killed in its place, if only for the moment of a fork. So it keeps
a child that has them, starts programs and tells of their ends. When the kernel kills the nursery for memory, its
children become init's own, as orphans do, and init makes another at the next start.

Init to nursery: (kind, call) of control_wire with the program and the descriptors of the order, or (REAP, pid): a
number stays its process' own until init knows of the end. The spawner to init: (BORN, call, 0, pid), (REFUSED, call,
errno, 0) or (ENDED, 0, wait status, pid).

Neither ever waits for a newborn, which tool code may stop before it becomes its program, nor init for the nursery.
"""

import errno
import os
import select
import signal
import socket
import struct
from array import array
from types import FrameType

from sandbox.daemon.supervisor.control_wire import ORDER_LIMIT_BYTES, PROBE, SPAWN_TTY, call_gid, decode_program
from sandbox.daemon.supervisor.launch import ToolIdentity, drop_to_tool, refusal, start
from sandbox.daemon.supervisor.oom_priority import lower_oom_priority
from sandbox.daemon.supervisor.tool_probe import describe_tool

MAX_DESCRIPTORS = 4
_DESCRIPTOR = struct.Struct("i")
_REAP = 0
_WAKES = 4096
_REQUEST = struct.Struct("ii")  # kind and call, or _REAP and a pid
BORN, REFUSED, ENDED = 1, 2, 3
_NEWS = struct.Struct("iiii")

News = tuple[int, int, int, int]


class ToolSpawner:
    """Init's end: has programs started and hears of them."""

    def __init__(self, tool: ToolIdentity) -> None:
        self._tool = tool
        self._line: socket.socket | None = None
        self._unborn: set[int] = set()  # calls of which nothing was heard yet
        self._lost: list[int] = []
        self._unreaped: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is news, -1 when there is no nursery."""
        return self._line.fileno() if self._line is not None else -1

    def start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        """Order SPAWN, SPAWN_TTY or PROBE; the news will tell. OSError when the order cannot be given."""
        request = _REQUEST.pack(kind, call) + program
        try:
            _send(self._line or self.open(), request, fds)
        except (BrokenPipeError, ConnectionResetError):
            _send(self.open(), request, fds)  # it was killed since the last order
        self._unborn.add(call)

    def news(self) -> News | None:
        """Return the next (BORN | REFUSED | ENDED, call, value, pid), None when there is none, without waiting."""
        self._reap()
        if self._line is None:
            return None
        try:
            data = self._line.recv(_NEWS.size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        if len(data) != _NEWS.size:
            self._close()
            return None
        kind, call, value, pid = _NEWS.unpack(data)
        self._unborn.discard(call)
        return kind, call, value, pid

    def release(self, pid: int) -> None:
        """Take note that nobody asks for an ended process any more: its number may be another's."""
        self._unreaped.append(pid)

    def lost(self) -> list[int]:
        """Return the calls whose start died with a nursery; what was started of them is not known."""
        lost, self._lost = self._lost, []
        return lost

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

    def _reap(self) -> None:
        try:
            while self._line is not None and self._unreaped:
                self._line.send(_REQUEST.pack(_REAP, self._unreaped[-1]), socket.MSG_DONTWAIT)
                self._unreaped.pop()
        except BlockingIOError:
            pass  # at the next news
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        self._lost += self._unborn
        self._unborn.clear()
        self._unreaped.clear()  # init's own children now


def _send(line: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send without waiting, which socket.send_fds cannot on Python 3.11; EAGAIN when there is no room."""
    line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)


def _become_nursery(line: socket.socket, tool: ToolIdentity) -> None:
    """Be the nursery until init closes the line."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    filtered = not tool.contained or lower_oom_priority(own_filters=tool.own_filters)
    _Nursery(line, tool, filtered=filtered).serve()


class _Newborn:
    """A process that has not become its program yet."""

    __slots__ = ("call", "pid", "said")

    def __init__(self, call: int, pid: int) -> None:
        self.call = call
        self.pid = pid
        self.said = b""


class _Nursery:
    def __init__(self, line: socket.socket, tool: ToolIdentity, *, filtered: bool) -> None:
        self._line = line
        self._tool = tool
        self._filtered = filtered
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._poller = select.poll()
        self._newborns: dict[int, _Newborn] = {}  # by the descriptor that tells of it
        self._children: set[int] = set()  # those whose end init has not been told
        self._refused: set[int] = set()  # those that ended without having been a program

    def serve(self) -> None:
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self._poller.register(wake_in, select.POLLIN)
        self._poller.register(self._line.fileno(), select.POLLIN)
        while True:
            for fd, _ in self._poller.poll():
                if fd == wake_in:
                    drain(wake_in)
                    self._tell_ends()
                elif fd in self._newborns:
                    self._hear(fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        data, fds = receive(self._line)
        try:
            if len(data) < _REQUEST.size:
                return False
            kind, number = _REQUEST.unpack_from(data)
            if kind == _REAP:
                os.waitpid(number, 0)  # it has ended
            else:
                self._start(kind, number, data[_REQUEST.size :], fds)
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        try:
            if kind == PROBE:
                self._born(call, self._probe(call, program, *fds))
            elif not self._filtered:
                self._tell(REFUSED, call, errno.EPERM, 0)  # tool code never runs without the filter
            elif program:
                self._spawn(call, program, *fds, terminal=kind == SPAWN_TTY)
            else:
                file, *stdio = fds
                program = os.pread(file, os.fstat(file).st_size, 0)
                self._spawn(call, program, *stdio, terminal=kind == SPAWN_TTY)
        except OSError as error:
            self._tell(REFUSED, call, error.errno or errno.EIO, 0)
        except Exception:  # a malformed order must not end anything
            self._tell(REFUSED, call, errno.EINVAL, 0)

    def _spawn(self, call: int, program: bytes, *stdio: int, terminal: bool) -> None:
        argv, env, cwd = decode_program(program)
        if terminal:
            (slave,) = stdio
            given = slave, slave, slave
        else:
            stdout, stderr, *stdin = stdio
            given = (stdin[0] if stdin else self._null, stdout, stderr)
        pid, telling = start(argv, env, cwd, given, self._tool, call, terminal=terminal)
        self._newborns[telling] = _Newborn(call, pid)
        self._poller.register(telling, select.POLLIN)

    def _hear(self, fd: int) -> None:
        newborn = self._newborns[fd]
        said = os.read(fd, 4096)
        if said:
            newborn.said += said
            return
        self._poller.unregister(fd)
        os.close(fd)
        del self._newborns[fd]
        if newborn.said:
            self._refused.add(newborn.pid)
            self._tell(REFUSED, newborn.call, refusal(newborn.said), 0)
        else:
            self._born(newborn.call, newborn.pid)
        self._tell_ends()  # of which the signal may have come before

    def _born(self, call: int, pid: int) -> None:
        self._children.add(pid)
        self._tell(BORN, call, 0, pid)

    def _tell(self, kind: int, call: int, value: int, pid: int) -> None:
        self._line.send(_NEWS.pack(kind, call, value, pid))

    def _probe(self, call: int, daemon_socket: bytes, output: int) -> int:
        """Write what the kernel says of a process that became the tool user, in the form of /proc/PID/status."""
        pid = os.fork()
        if pid == 0:
            try:
                describe_tool(output, daemon_socket, lambda: drop_to_tool(self._tool, call_gid(call)))
            finally:
                os._exit(0)
        return pid

    def _tell_ends(self) -> None:
        for pid in tuple(self._refused):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._refused.discard(pid)
        for pid in tuple(self._children):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._children.discard(pid)
                # As waitpid() would have it.
                exited = ended.si_code == os.CLD_EXITED
                self._tell(ENDED, 0, ended.si_status << 8 if exited else ended.si_status, pid)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Signals must have a handler to wake the poll through the wakeup descriptor."""


def drain(fd: int) -> None:
    """Empty a pipe that only wakes."""
    try:
        while len(os.read(fd, _WAKES)) == _WAKES:
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
