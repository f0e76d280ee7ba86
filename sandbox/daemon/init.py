"""Pid 1: the only process with privileges, so it does as little as possible, one thing at a time.

It starts tool processes and kills call trees when the server asks, reaps everybody, and ends the sandbox when the
server is gone. It never reads a byte that tool code wrote.
"""

import errno
import os
import select
import signal
import socket
import struct
import sys
from types import FrameType

from sandbox.daemon.call_tree import kill_call_tree
from sandbox.daemon.control_wire import (
    EXITED,
    FAILED,
    KILL,
    KILLED,
    NOTICE,
    ORDER,
    PROBE,
    SPAWN,
    STARTED,
    call_gid,
    decode_program,
)
from sandbox.daemon.launch import Launcher, ToolIdentity, drop_to_tool

MAX_DESCRIPTORS = 4
_DESCRIPTOR = struct.Struct("i")


class Init:
    """Serves the server's orders until it dies."""

    def __init__(self, control: socket.socket, server_pid: int, tool: ToolIdentity) -> None:
        self._control = control
        self._server_pid = server_pid
        self._tool = tool
        self._launcher = Launcher(tool)
        self._calls: dict[int, int] = {}  # pid of a call's first process -> call
        self._server_status: int | None = None
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> int:
        """Return the exit status of the sandbox, once the server has died."""
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _leave)
        poller = select.poll()
        poller.register(wake_in, select.POLLIN)
        poller.register(self._control.fileno(), select.POLLIN)
        self._reap()
        while self._server_status is None:
            for fd, _ in poller.poll():
                if fd == wake_in:
                    _drain(wake_in)
                elif not self._obey():
                    # The server closed its end without dying: it cannot serve any more.
                    os.kill(self._server_pid, signal.SIGKILL)
                    poller.unregister(fd)
            self._reap()
        print(f"airlock daemon: the server ended, {_describe(self._server_status)}; the sandbox ends", file=sys.stderr)
        return 70

    def _obey(self) -> bool:
        """Carry out one order; return False when the server hung up."""
        data, fds = _receive(self._control)
        try:
            if len(data) != ORDER.size:
                return False
            kind, call = ORDER.unpack(data)
            if kind == SPAWN:
                self._spawn(call, fds)
            elif kind == KILL:
                self._notify(KILLED, call, kill_call_tree(call_gid(call), self._reap))
            elif kind == PROBE:
                self._probe(call, fds)
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def _spawn(self, call: int, fds: list[int]) -> None:
        try:
            program, stdout, stderr, *stdin = fds
            size = os.fstat(program).st_size
            argv, env, cwd = decode_program(os.pread(program, size, 0))
            stdio = (stdin[0] if stdin else self._null, stdout, stderr)
            pid = self._launcher.start(argv, env, cwd, stdio, call_gid(call))
        except OSError as error:
            self._notify(FAILED, call, error.errno or errno.EIO)
            return
        except Exception:  # a malformed order must not end the sandbox
            self._notify(FAILED, call, errno.EINVAL)
            return
        self._calls[pid] = call
        self._notify(STARTED, call, 0, pid)

    def _probe(self, call: int, fds: list[int]) -> None:
        """Write what the kernel says of a process that became the tool user, in the form of /proc/PID/status."""
        try:
            if not fds:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            pid = os.fork()
        except OSError as error:
            self._notify(FAILED, call, error.errno or 0)
            return
        if pid == 0:
            try:
                drop_to_tool(self._tool, call_gid(call))
                with open("/proc/self/status", "rb") as file:
                    os.write(fds[0], file.read())
            finally:
                os._exit(0)
        self._calls[pid] = call
        self._notify(STARTED, call, 0, pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server_pid:
                self._server_status = status
            call = self._calls.pop(pid, None)
            if call is not None:
                self._notify(EXITED, call, status, pid)

    def _notify(self, kind: int, call: int, value: int, pid: int = 0) -> None:
        try:
            self._control.send(NOTICE.pack(kind, call, value, pid))
        except OSError:
            pass  # the server is gone; run() ends as soon as it is reaped


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return an order and its descriptors, which are close-on-exec: nothing but its stdio may reach a program.

    Not socket.recv_fds: it drops the flags on Python 3.11.
    """
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * _DESCRIPTOR.size)
    data, ancillary, _, _ = control.recvmsg(ORDER.size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % _DESCRIPTOR.size
            fds += (fd for (fd,) in _DESCRIPTOR.iter_unpack(content[:whole]))
    return data, fds


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Signals must have a handler to wake the poll through the wakeup descriptor."""


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # the kernel kills everything in the sandbox when pid 1 is gone


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"
