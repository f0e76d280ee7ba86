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
from sandbox.daemon.supervisor.call_tree import PausedCalls, kill_calls, pause_everything, resume, signal_calls
from sandbox.daemon.supervisor.file_rules import FileRules
from sandbox.daemon.supervisor.launch import ToolIdentity


class Init:
    """Serves the server's orders until it dies."""

    def __init__(self, control: socket.socket, server_pid: int, tool: ToolIdentity) -> None:
        self._control = control
        self._server_pid = server_pid
        self._tool = tool
        self._spawners = {0: tool_spawner.ToolSpawner(tool)}  # by the number of their file rules
        self._retired: list[tool_spawner.ToolSpawner] = []
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
            self._spawners[0].open()  # while the server starts
        except OSError:
            pass  # the first order tries again
        watched: set[int] = set()
        while self._server_status is None:
            lines = {spawner.fileno() for spawner in self._all_spawners()} - {-1}
            for fd in watched - lines:
                poller.unregister(fd)
            for fd in lines - watched:
                poller.register(fd, select.POLLIN)
            watched = lines
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
            self._end_lost()
        status = os.waitstatus_to_exitcode(self._server_status)
        how = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
        print(f"airlock daemon: the server ended, {how}; the sandbox ends", file=sys.stderr)
        return 70

    def _end_lost(self) -> None:
        """Kill what lost starts have started, report them, and forget the retired tool spawners that have ended."""
        # To kill is to reap, which finds out about more of them.
        while lost := [call for spawner in self._all_spawners() for call in spawner.lost()]:
            for call in lost:
                kill_calls(call.__eq__, self._reap)
                self._notify(control_wire.FAILED, call, errno.ENOMEM)
        self._retired = [spawner for spawner in self._retired if spawner.fileno() >= 0]

    def _obey(self) -> bool:
        """Carry out one order; return False when the server hung up."""
        data, fds = tool_spawner.receive(self._control)
        try:
            if len(data) < control_wire.ORDER.size:
                return False
            kind, call, value = control_wire.ORDER.unpack_from(data)
            rest = data[control_wire.ORDER.size :]
            if kind in (control_wire.SPAWN, control_wire.SPAWN_TTY, control_wire.PROBE):
                self._start(kind, call, rest, fds, rules=value)
            elif kind == control_wire.FILE_RULES:
                self._replace(value, FileRules.decode(rest))
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
                    return kill_calls(call.__eq__, self._reap)
                case control_wire.KILL_STRAYS:
                    kept_calls = control_wire.decode_calls(rest)
                    return kill_calls(lambda other: other not in kept_calls, self._reap)
                case control_wire.PAUSE:
                    return pause_everything(self._paused)
                case control_wire.RESUME:
                    return resume(self._paused)
                case control_wire.SIGNAL_TREE:
                    return signal_calls(call.__eq__, number)
                case control_wire.SIGNAL:
                    # A session's first process leads a process group of the same number, reused only once it is reaped.
                    for pid in (pid for pid, owner in self._calls.items() if owner == call):
                        os.killpg(pid, number)
                        return 0
                    return -errno.ESRCH
                case _:
                    return -errno.EINVAL
        except OSError as error:
            return -(error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            return -errno.EINVAL

    def _all_spawners(self) -> list[tool_spawner.ToolSpawner]:
        return [*self._spawners.values(), *self._retired]

    def _replace(self, number: int, rules: FileRules | None) -> None:
        """Have another tool spawner for some file rules; what the last one started goes on."""
        last = self._spawners.get(number)
        if last is not None:
            last.retire()
            self._retired.append(last)
        self._spawners[number] = tool_spawner.ToolSpawner(self._tool, rules)

    def _start_again(self, spawner: tool_spawner.ToolSpawner, news: tool_spawner.News) -> None:
        """Start what a tool spawner has returned, whose grants are no longer what its rules make of the files."""
        try:
            number = next((number for number, one in self._spawners.items() if one.rules is spawner.rules), -1)
            if self._spawners.get(number) is spawner:
                self._replace(number, spawner.rules)
            self._start(news.value, news.call, news.program, news.fds, rules=number)
        finally:
            for fd in news.fds:
                os.close(fd)

    def _start(self, kind: int, call: int, program: bytes, fds: list[int], *, rules: int) -> None:
        try:
            self._spawners[rules].start(kind, call, program, fds)
        except OSError as error:
            self._notify(control_wire.FAILED, call, error.errno or errno.EIO)
        except Exception:  # a malformed order must not end the sandbox
            self._notify(control_wire.FAILED, call, errno.EINVAL)

    def _reap(self) -> None:
        """Process the tool spawners' news, and reap the tool spawners, the server and orphans."""
        for spawner in self._all_spawners():
            while (news := spawner.news()) is not None:
                self._process(spawner, news)
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

    def _process(self, spawner: tool_spawner.ToolSpawner, news: tool_spawner.News) -> None:
        match news.kind:
            case tool_spawner.RUNNING:
                self._calls[news.pid] = news.call
                self._notify(control_wire.STARTED, news.call, 0, news.pid)
            case tool_spawner.ENDED:
                self._notify_end(news.pid, news.value)
                spawner.release(news.pid)
            case tool_spawner.RETURNED:
                self._start_again(spawner, news)
            case _:
                self._notify(control_wire.FAILED, news.call, news.value)

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
