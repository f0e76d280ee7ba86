"""Pid 1: the only privileged process, so it does as little as possible, one thing at a time.

It has tool processes started, signals and kills call trees when the server orders it, reaps all processes, and ends the
sandbox when the server is gone. It never reads a byte that tool code wrote.
"""

import errno
import os
import select
import signal
import socket
import sys
from types import FrameType

from sandbox.daemon.supervisor import control_wire, tool_spawner
from sandbox.daemon.supervisor.call_pause import PausedCalls, pause_everything, resume
from sandbox.daemon.supervisor.call_tree import kill_call_tree, kill_strays, signal_call_tree
from sandbox.daemon.supervisor.launch import ToolIdentity


class Init:
    """Serves the server's orders until it dies."""

    def __init__(self, control: socket.socket, server_pid: int, tool: ToolIdentity) -> None:
        self._control = control
        self._server_pid = server_pid
        self._tool_spawner = tool_spawner.ToolSpawner(tool)
        self._paused = PausedCalls()
        self._calls: dict[int, int] = {}  # pid of a call's first process -> call, until it is reaped
        self._server_status: int | None = None

    def run(self) -> int:
        """Return the exit status of the sandbox, once the server has died."""
        wakeup = tool_spawner.open_wakeup()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _leave)
        poller = select.poll()
        poller.register(wakeup, select.POLLIN)
        poller.register(self._control.fileno(), select.POLLIN)
        try:
            self._tool_spawner.open()  # while the server starts
        except OSError:
            pass  # the first order tries again
        watched = -1
        while self._server_status is None:
            if watched != self._tool_spawner.fileno():
                if watched >= 0:
                    poller.unregister(watched)
                watched = self._tool_spawner.fileno()
                if watched >= 0:
                    poller.register(watched, select.POLLIN)
            news = False
            for fd, _ in poller.poll():
                if fd != self._control.fileno():
                    news = True
                    if fd == wakeup:
                        tool_spawner.drain(wakeup)
                elif not self._obey():
                    # The server closed its end without dying, so it cannot serve any more.
                    os.kill(self._server_pid, signal.SIGKILL)
                    poller.unregister(fd)
            if news:
                self._reap()
            for call in self._tool_spawner.lost():
                kill_call_tree(call, self._reap)
                self._notify(control_wire.FAILED, call, errno.ENOMEM)
        print(f"airlock daemon: the server ended, {_describe(self._server_status)}; the sandbox ends", file=sys.stderr)
        return 70

    def _obey(self) -> bool:
        """Carry out one order; return False when the server hung up."""
        data, fds = tool_spawner.receive(self._control)
        try:
            if len(data) < control_wire.ORDER.size:
                return False
            kind, call, value = control_wire.ORDER.unpack_from(data)
            rest = data[control_wire.ORDER.size :]
            if kind in (control_wire.SPAWN, control_wire.SPAWN_TTY, control_wire.PROBE):
                self._start(kind, call, rest, fds)
            else:
                self._notify(control_wire.DONE, call, self._signal(kind, call, value, rest))
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def _signal(self, kind: int, call: int, number: int, rest: bytes) -> int:
        """Carry out an order to signal, pause or kill; return the value of DONE."""
        try:
            match kind:
                case control_wire.KILL:
                    return kill_call_tree(call, self._reap)
                case control_wire.KILL_STRAYS:
                    return kill_strays(control_wire.decode_calls(rest), self._reap)
                case control_wire.PAUSE:
                    return pause_everything(self._paused)
                case control_wire.RESUME:
                    return resume(self._paused)
                case control_wire.SIGNAL_TREE:
                    return signal_call_tree(call, number)
                case control_wire.SIGNAL:
                    return self._signal_group(call, number)
                case _:
                    return -errno.EINVAL
        except OSError as error:
            return -(error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            return -errno.EINVAL

    def _signal_group(self, call: int, number: int) -> int:
        # A session's first process leads a process group of the same number, which is not reused until it is reaped.
        for pid, owner in self._calls.items():
            if owner == call:
                os.killpg(pid, number)
                return 0
        return -errno.ESRCH

    def _start(self, kind: int, call: int, program: bytes, fds: list[int]) -> None:
        try:
            self._tool_spawner.start(kind, call, program, fds)
        except OSError as error:
            self._notify(control_wire.FAILED, call, error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            self._notify(control_wire.FAILED, call, errno.EINVAL)

    def _reap(self) -> None:
        """Process the tool spawner's news, and reap the tool spawner, the server and orphans."""
        while (news := self._tool_spawner.news()) is not None:
            kind, call, value, pid = news
            if kind == tool_spawner.RUNNING:
                self._calls[pid] = call
                self._notify(control_wire.STARTED, call, 0, pid)
            elif kind == tool_spawner.ENDED:
                self._notify_end(pid, value)
                self._tool_spawner.release(pid)
            else:
                self._notify(control_wire.FAILED, call, value)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server_pid:
                self._server_status = status
            self._notify_end(pid, status)

    def _notify_end(self, pid: int, status: int) -> None:
        call = self._calls.pop(pid, None)
        if call is not None:
            self._notify(control_wire.EXITED, call, status, pid)

    def _notify(self, kind: int, call: int, value: int, pid: int = 0) -> None:
        try:
            self._control.send(control_wire.NOTICE.pack(kind, call, value, pid))
        except OSError:
            pass  # the server is gone; run() ends once it is reaped


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # the kernel then kills everything in the sandbox


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"
