"""The server's end of the line to init: starting processes, hearing of their end, killing call trees."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from sandbox.daemon.control_wire import (
    CALL_NUMBERS,
    EXITED,
    FAILED,
    KILL,
    KILLED,
    NOTICE,
    ORDER,
    PROBE,
    SPAWN,
    STARTED,
    encode_program,
)


class Process:
    """A call's first process. `ended` gives the wait status once init has reaped it."""

    def __init__(self, call: int, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.started: asyncio.Future[int] = loop.create_future()  # pid; OSError when it could not be started
        self.ended: asyncio.Future[int] = loop.create_future()
        self.killed: asyncio.Future[int] | None = None


class Spawner:
    """Sends orders to init and hands its notices to whoever waits for them."""

    def __init__(self, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._control.setblocking(False)
        self._processes: dict[int, Process] = {}
        self._next_call = 0
        self._waiting: deque[tuple[bytes, list[int]]] = deque()  # orders that init's queue had no room for
        self._loop.add_reader(control.fileno(), self._notices)

    async def start(self, argv: list[bytes], env: list[bytes], cwd: bytes, stdio: list[int]) -> Process:
        """Start a program with stdout, stderr and perhaps stdin; OSError says why it did not start.

        The descriptors stay the caller's and may be closed afterwards. After a start, finish with forget().
        """
        program = os.memfd_create("program", os.MFD_CLOEXEC)
        try:
            _write_all(program, encode_program(argv, env, cwd))
            return await self._order(SPAWN, [program, *stdio])
        finally:
            os.close(program)

    async def probe(self, output: int) -> None:
        """Have a process that became the tool user write its /proc/self/status into a descriptor."""
        process = await self._order(PROBE, [output])
        await process.ended
        self.forget(process)

    async def _order(self, kind: int, fds: list[int]) -> Process:
        self._next_call = self._next_call % (CALL_NUMBERS - 1) + 1
        process = Process(self._next_call, self._loop)
        self._processes[process.call] = process
        self._send(ORDER.pack(kind, process.call), fds)
        try:
            # Shielded: the descriptors must live until init has them, and a cancelled start must still be killed.
            await asyncio.shield(process.started)
        except OSError:
            self.forget(process)
            raise
        except asyncio.CancelledError:
            await asyncio.wait([process.started])
            if process.started.exception() is None:
                await self.kill(process)
            self.forget(process)
            raise
        return process

    async def kill(self, process: Process) -> int:
        """SIGKILL everything the call started; return how many processes survived init's time limit, normally 0."""
        process.killed = self._loop.create_future()
        self._send(ORDER.pack(KILL, process.call), [])
        return await process.killed

    def forget(self, process: Process) -> None:
        """Stop listening for notices of a call; what it left behind lives on."""
        self._processes.pop(process.call, None)

    def _send(self, order: bytes, fds: list[int]) -> None:
        self._waiting.append((order, [os.dup(fd) for fd in fds]))
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            order, fds = self._waiting[0]
            try:
                socket.send_fds(self._control, [order], fds)
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._flush)
                return
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._control.fileno())

    def _notices(self) -> None:
        for _ in range(64):  # a burst of exits must not starve everybody else
            try:
                data = self._control.recv(NOTICE.size)
            except BlockingIOError:
                return
            if len(data) != NOTICE.size:
                os._exit(71)  # init is gone or broken, and with it the sandbox
            kind, call, value, pid = NOTICE.unpack(data)
            process = self._processes.get(call)
            if process is None:
                continue
            if kind == STARTED:
                process.started.set_result(pid)
            elif kind == FAILED:
                process.started.set_exception(OSError(value, os.strerror(value)))
            elif kind == EXITED and not process.ended.done():
                process.ended.set_result(value)
            elif kind == KILLED and process.killed is not None and not process.killed.done():
                process.killed.set_result(value)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
