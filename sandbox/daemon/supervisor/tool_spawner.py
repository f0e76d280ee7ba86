"""The tool spawner: a child of init that starts tool processes, with tool code's OOM score, nice value and domain.

A process inherits its OOM score, nice value and Landlock domain at the fork. Init itself must have none of them: the
kernel could kill it in place of tool code. When the kernel kills the tool spawner for memory, its children become
init's, as orphans do, and init forks another one at the next start.

A tool spawner may have file rules (file_rules.py). It is then in the domain that they make of the files there are at
its fork, and so is all that it starts. When the files have changed since, or there is no domain for there were too
many, it returns its order to init, which forks another one for it. The first order of each is never returned: it is
carried out, or refused without a domain.

Init to tool spawner: (kind, call) of control_wire with the program and descriptors of the order, or (REAP, pid): a pid
stays reserved until init knows of the end. Tool spawner to init: (RUNNING, call, 0, pid), (REFUSED, call, errno, 0),
(ENDED, 0, wait status, pid) or (RETURNED, call, kind, 0) with the program and descriptors of an order.

In a sandbox a process waits for each next start (waiting_process.py); the next one is started once the program runs.

Neither ever blocks on a pending child, which tool code may stop before it executes its program, nor init on the tool
spawner.
"""

import errno
import os
import select
import signal
import socket
import struct
from array import array
from types import FrameType

from sandbox.daemon.supervisor import launch
from sandbox.daemon.supervisor.control_wire import ORDER_LIMIT_BYTES, PROBE, SPAWN_TTY, call_gid, decode_program
from sandbox.daemon.supervisor.file_rules import FileRules, Grants, TooManyFiles, make_writable
from sandbox.daemon.supervisor.landlock import ALL, EXECUTE, READ_FILE, TRUNCATE_VERSION, landlock_version, restrict
from sandbox.daemon.supervisor.libc import libc
from sandbox.daemon.supervisor.tool_filter import filter_tool_code
from sandbox.daemon.supervisor.waiting_process import START_TOOL, WaitingProcess, can_wait

_DESCRIPTOR = struct.Struct("i")
_PR_SET_NO_NEW_PRIVS = 38
_IDLE_MS = 30_000
"""How long a process waits: each set of file rules has a spawner, and all count against the sandbox's `pids`."""
_REAP = 0
_WAKES = 4096
_REQUEST = struct.Struct("ii")  # kind and call, or _REAP and a pid
RUNNING, REFUSED, ENDED, RETURNED = 1, 2, 3, 4
_NEWS = struct.Struct("iiii")


class News:
    """What a tool spawner reports; `program` and `fds`, which the receiver closes, are those of a returned order."""

    __slots__ = ("call", "fds", "kind", "pid", "program", "value")

    def __init__(self, data: bytes, fds: list[int]) -> None:
        self.kind, self.call, self.value, self.pid = _NEWS.unpack_from(data)
        self.program = data[_NEWS.size :]
        self.fds = fds


class ToolSpawner:
    """Init's end: sends orders and receives news. With `rules`, what it starts is in the domain that they make."""

    def __init__(self, tool: launch.ToolIdentity, rules: FileRules | None = None) -> None:
        self.rules = rules
        self._tool = tool
        self._line: socket.socket | None = None
        self._retiring = False
        self._pending: set[int] = set()  # calls without news yet
        self._lost: list[int] = []
        self._unreaped: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with news, -1 without a tool spawner."""
        return self._line.fileno() if self._line is not None else -1

    def start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        """Order SPAWN, SPAWN_TTY or PROBE, which is answered by news; OSError if the order cannot be sent."""
        request = _REQUEST.pack(kind, call) + program
        try:
            _send(self._line or self.open(), request, fds)
        except (BrokenPipeError, ConnectionResetError):
            _send(self.open(), request, fds)  # it was killed since the last order
        self._pending.add(call)

    def news(self) -> News | None:
        """Return what it reports next, or None, without waiting."""
        self._reap()
        if self._line is None:
            return None
        data, fds = b"", list[int]()
        try:
            data, fds = receive(self._line, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            pass
        if len(data) < _NEWS.size:
            self._close()
            return None
        news = News(data, fds)
        self._pending.discard(news.call)
        if self._retiring:
            self.retire()
        return news

    def retire(self) -> None:
        """Have it end once no start is pending; what it has started goes on, as a child of init."""
        self._retiring = True
        if not self._pending:
            self._close()

    def release(self, pid: int) -> None:
        """Let an ended process be reaped, after which the kernel may reuse its pid."""
        self._unreaped.append(pid)

    def lost(self) -> list[int]:
        """Return the calls whose start was lost with a tool spawner; they may have started or not."""
        lost, self._lost = self._lost, []
        return lost

    def open(self) -> socket.socket:
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
                    _serve(theirs, self._tool, self.rules)
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
            pass  # with the next news
        except OSError:
            self._unreaped.clear()  # it is gone, but there may be news of it to read

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        self._lost += self._pending
        self._pending.clear()
        self._unreaped.clear()  # they are init's own children now


def _send(line: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send without waiting, which socket.send_fds cannot on Python 3.11; EAGAIN if the queue is full."""
    line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)


def _serve(line: socket.socket, tool: launch.ToolIdentity, rules: FileRules | None) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    if tool.contained:
        launch.lower_oom_priority()
    # Tool code never runs without the filter, nor out of its domain.
    grants, refusal = (None, 0) if rules is None else _enter_domain(tool, rules)
    attributes = rules is None and tool.attributes
    filtered = not tool.contained or filter_tool_code(own_filters=tool.own_filters, attributes=attributes)
    _Children(line, tool, grants, refusal or (0 if filtered else errno.EPERM), in_domain=not refusal).serve()


def _enter_domain(tool: launch.ToolIdentity, rules: FileRules) -> tuple[Grants | None, int]:
    """Enter the domain that the rules make of the files there are; return the grants, or the errno of a refusal."""
    if landlock_version() < TRUNCATE_VERSION:
        return None, errno.EPERM

    call = libc()
    # Opened by root: tool code cannot enter the bundle, so the grant is of no use to it.
    starter = [os.open(START_TOOL, os.O_PATH | os.O_CLOEXEC)] if can_wait(tool) else []
    if call is not None and not tool.contained:
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # a domain needs it, and every container has it

    def enter() -> tuple[Grants | None, int]:
        make_writable(rules)
        grants = Grants(rules)
        opened = dict.fromkeys(starter, EXECUTE | READ_FILE)
        entered = restrict(ALL, grants.rights, grants.files, grants.is_meant, opened)
        return (grants, 0) if entered else (None, errno.EPERM)

    try:
        return launch.files_as_tool(tool, enter)
    except TooManyFiles:
        return None, errno.EOVERFLOW
    except OSError:
        return None, errno.EPERM
    finally:
        for fd in starter:
            os.close(fd)


class _Children:
    """The tool spawner's end: starts children and reports them, or refuses them all with the errno `refusal`."""

    def __init__(
        self, line: socket.socket, tool: launch.ToolIdentity, grants: Grants | None, refusal: int, *, in_domain: bool
    ) -> None:
        self._line = line
        self._tool = tool
        self._grants = grants
        self._refusal = refusal
        self._in_domain = in_domain
        self._fresh = True
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._poller = select.poll()
        # By the descriptor for the outcome of the exec: call, pid, and the message of a failure so far.
        self._pending: dict[int, tuple[int, int, bytearray]] = {}
        self._running: set[int] = set()  # children whose end was not reported yet
        self._refused: set[int] = set()  # children that ended without executing a program
        self._waits = can_wait(tool) and not refusal
        self._waiting: WaitingProcess | None = None

    def serve(self) -> None:
        wakeup = open_wakeup()
        self._poller.register(wakeup, select.POLLIN)
        self._poller.register(self._line.fileno(), select.POLLIN)
        self._prepare()
        while True:
            ready = self._poller.poll(None if self._waiting is None else _IDLE_MS)
            if not ready and self._waiting is not None:
                self._waiting.end()
                self._waiting = None
            for fd, _ in ready:
                if fd == wakeup:
                    drain(wakeup)
                    self._report_ends()
                elif fd in self._pending:
                    self._read_outcome(fd)
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

    def _is_outdated(self) -> bool:
        """Return whether another fork may have another domain; never of the first order, so that each fork has one."""
        fresh, self._fresh = self._fresh, False
        if fresh or not self._in_domain:
            return not fresh
        return self._grants is not None and not launch.files_as_tool(self._tool, self._grants.is_current)

    def _start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        try:
            if kind == PROBE:
                self._report_running(call, self._probe(call, program, *fds))
                return
            if self._is_outdated():
                _send(self._line, _NEWS.pack(RETURNED, call, kind, 0) + program, fds)
                return
            if self._refusal:
                self._report(REFUSED, call, self._refusal, 0)
                return
            pid, outcome = self._spawn(kind, call, program, fds)
            self._pending[outcome] = call, pid, bytearray()
            self._poller.register(outcome, select.POLLIN)
        except OSError as error:
            self._report(REFUSED, call, error.errno or errno.EIO, 0)
        except Exception:  # a malformed order must not end anything
            self._report(REFUSED, call, errno.EINVAL, 0)

    def _spawn(self, kind: int, call: int, program: bytes, fds: list[int]) -> tuple[int, int]:
        if self._waits:
            order = _REQUEST.pack(kind, call) + program
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                try:
                    return waiting.take(order, fds)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the kernel has killed it for memory
            return WaitingProcess(self._tool, self._null).take(order, fds)
        if not program:
            file, *fds = fds
            program = os.pread(file, os.fstat(file).st_size, 0)
        argv, env, cwd = decode_program(program)
        if kind == SPAWN_TTY:
            (slave,) = fds
            given = slave, slave, slave
        else:
            stdout, stderr, *stdin = fds
            given = (stdin[0] if stdin else self._null, stdout, stderr)
        return launch.start(argv, env, cwd, given, self._tool, call, terminal=kind == SPAWN_TTY)

    def _prepare(self) -> None:
        """Have a process wait for the next start."""
        if self._waits and self._waiting is None:
            try:
                self._waiting = WaitingProcess(self._tool, self._null)
            except OSError:
                pass  # the next start tries again, and reports it

    def _read_outcome(self, fd: int) -> None:
        call, pid, message = self._pending[fd]
        if piece := os.read(fd, 4096):
            message += piece
            return
        self._poller.unregister(fd)
        os.close(fd)
        del self._pending[fd]
        if message:
            self._refused.add(pid)
            self._report(REFUSED, call, launch.error_number(bytes(message)), 0)
        else:
            self._report_running(call, pid)
        self._report_ends()  # the signal of its end may have come before
        self._prepare()  # beside the program that runs now

    def _report_running(self, call: int, pid: int) -> None:
        self._running.add(pid)
        self._report(RUNNING, call, 0, pid)

    def _report(self, kind: int, call: int, value: int, pid: int) -> None:
        self._line.send(_NEWS.pack(kind, call, value, pid))

    def _probe(self, call: int, daemon_socket: bytes, output: int) -> int:
        """Fork a process that becomes the tool user and describes itself in the form of /proc/PID/status."""
        pid = os.fork()
        if pid == 0:
            try:
                launch.describe_tool(output, daemon_socket, lambda: launch.drop_to_tool(self._tool, call_gid(call)))
            finally:
                os._exit(0)
        return pid

    def _report_ends(self) -> None:
        for pid in tuple(self._refused):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._refused.discard(pid)
        for pid in tuple(self._running):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._running.discard(pid)
                # The status in the form of waitpid().
                exited = ended.si_code == os.CLD_EXITED
                self._report(ENDED, 0, ended.si_status << 8 if exited else ended.si_status, pid)


def open_wakeup() -> int:
    """Return a pipe that becomes readable with every signal, SIGCHLD included."""
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    return wake_in


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Only signals with a handler write to the wakeup descriptor."""


def drain(fd: int) -> None:
    """Empty a wakeup pipe."""
    try:
        while len(os.read(fd, _WAKES)) == _WAKES:
            pass
    except BlockingIOError:
        pass


def receive(control: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return an order and its descriptors, which are close-on-exec: a program gets nothing but its stdio."""
    # socket.recv_fds drops the flags on Python 3.11. An order has four descriptors at most: the program's file, and its
    # standard input, output and error.
    room = socket.CMSG_LEN(4 * _DESCRIPTOR.size)
    data, ancillary, _, _ = control.recvmsg(ORDER_LIMIT_BYTES, room, socket.MSG_CMSG_CLOEXEC | flags)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % _DESCRIPTOR.size
            fds += (fd for (fd,) in _DESCRIPTOR.iter_unpack(content[:whole]))
    return data, fds
