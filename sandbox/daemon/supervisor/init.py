"""Pid 1: the only process with privileges, so it does as little as possible, one thing at a time.

It starts tool processes, signals and kills call trees when the server asks, reaps everybody, and ends the sandbox when
the server is gone. It never reads a byte that tool code wrote.
"""

import errno
import os
import select
import signal
import socket
import sys
from types import FrameType

from sandbox.daemon.supervisor.call_hold import Hold, hold_everything, release
from sandbox.daemon.supervisor.call_tree import kill_call_tree, kill_strays, signal_call_tree
from sandbox.daemon.supervisor.control_wire import (
    DONE,
    EXITED,
    FAILED,
    HOLD,
    KILL,
    KILL_STRAYS,
    NOTICE,
    ORDER,
    PROBE,
    RELEASE,
    SIGNAL,
    SIGNAL_TREE,
    SPAWN,
    SPAWN_TTY,
    STARTED,
    decode_calls,
)
from sandbox.daemon.supervisor.launch import ToolIdentity
from sandbox.daemon.supervisor.tool_spawner import BORN, ENDED, ToolSpawner, drain, receive


class Init:
    """Serves the server's orders until it dies."""

    def __init__(self, control: socket.socket, server_pid: int, tool: ToolIdentity) -> None:
        self._control = control
        self._server_pid = server_pid
        self._nursery = ToolSpawner(tool)
        self._hold = Hold()
        self._calls: dict[int, int] = {}  # pid of a call's first process -> call; only while it is not reaped
        self._server_status: int | None = None

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
        self._prepare()
        watched = -1
        while self._server_status is None:
            if watched != self._nursery.fileno():
                if watched >= 0:
                    poller.unregister(watched)
                watched = self._nursery.fileno()
                if watched >= 0:
                    poller.register(watched, select.POLLIN)
            news = False
            for fd, _ in poller.poll():
                if fd != self._control.fileno():
                    news = True
                    if fd == wake_in:
                        drain(wake_in)
                elif not self._obey():
                    # The server closed its end without dying: it cannot serve any more.
                    os.kill(self._server_pid, signal.SIGKILL)
                    poller.unregister(fd)
            if news:
                self._reap()
            for call in self._nursery.lost():
                kill_call_tree(call, self._reap)
                self._notify(FAILED, call, errno.ENOMEM)
        print(f"airlock daemon: the server ended, {_describe(self._server_status)}; the sandbox ends", file=sys.stderr)
        return 70

    def _prepare(self) -> None:
        """Have the nursery made while the server starts; one that cannot be made now is at the first order."""
        try:
            self._nursery.open()
        except OSError:
            pass

    def _obey(self) -> bool:
        """Carry out one order; return False when the server hung up."""
        data, fds = receive(self._control)
        try:
            if len(data) < ORDER.size:
                return False
            kind, call, value = ORDER.unpack_from(data)
            if kind in (SPAWN, SPAWN_TTY, PROBE):
                self._start(kind, call, data[ORDER.size :], fds)
            else:
                self._notify(DONE, call, self._signal(kind, call, value, data[ORDER.size :]))
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def _signal(self, kind: int, call: int, number: int, rest: bytes) -> int:
        """Carry out an order to signal or kill; return what DONE says of it."""
        try:
            if kind == KILL:
                return kill_call_tree(call, self._reap)
            if kind == KILL_STRAYS:
                return kill_strays(decode_calls(rest), self._reap)
            if kind == HOLD:
                return hold_everything(self._hold)
            if kind == RELEASE:
                return release(self._hold)
            if kind == SIGNAL_TREE:
                return signal_call_tree(call, number)
            if kind == SIGNAL:
                return self._signal_group(call, number)
            return -errno.EINVAL
        except OSError as error:
            return -(error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            return -errno.EINVAL

    def _signal_group(self, call: int, number: int) -> int:
        # A session's first process leads a process group of the same number for as long as it lives, and the number
        # belongs to it until it is reaped; afterwards it may be anybody's.
        for pid, owner in self._calls.items():
            if owner == call:
                os.killpg(pid, number)
                return 0
        return -errno.ESRCH

    def _start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        try:
            self._nursery.start(kind, call, program, fds)
        except OSError as error:
            self._notify(FAILED, call, error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            self._notify(FAILED, call, errno.EINVAL)

    def _reap(self) -> None:
        """Take note of births and ends: of the nursery's children, the nursery, the server and orphans."""
        while (news := self._nursery.news()) is not None:
            kind, call, value, pid = news
            if kind == BORN:
                self._calls[pid] = call
                self._notify(STARTED, call, 0, pid)
            elif kind == ENDED:
                self._tell_end(pid, value)
                self._nursery.release(pid)
            else:
                self._notify(FAILED, call, value)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server_pid:
                self._server_status = status
            self._tell_end(pid, status)

    def _tell_end(self, pid: int, status: int) -> None:
        call = self._calls.pop(pid, None)
        if call is not None:
            self._notify(EXITED, call, status, pid)

    def _notify(self, kind: int, call: int, value: int, pid: int = 0) -> None:
        try:
            self._control.send(NOTICE.pack(kind, call, value, pid))
        except OSError:
            pass  # the server is gone; run() ends as soon as it is reaped


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Signals must have a handler to wake the poll through the wakeup descriptor."""


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # the kernel kills everything in the sandbox when pid 1 is gone


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"
