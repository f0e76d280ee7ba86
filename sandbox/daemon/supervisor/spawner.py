"""The server's end of the line to init: starting processes, hearing of their end, signalling and killing call trees."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable

from sandbox.daemon.supervisor.control_wire import (
    CALL_NUMBERS,
    DONE,
    EXITED,
    FAILED,
    HOLD,
    KILL,
    KILL_STRAYS,
    NOTICE,
    ORDER,
    PROBE,
    PROGRAM_LIMIT_BYTES,
    RELEASE,
    SIGNAL,
    SIGNAL_TREE,
    SPAWN,
    SPAWN_TTY,
    STARTED,
    encode_calls,
    encode_program,
)

# How long a start may take unless its call says less.
START_LIMIT_S = 10.0
_NEWBORN_PAUSE_S = 0.02
# A program that finds no place for a process is tried again for two thirds of a second in all.
_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 0.32
_KILL_ATTEMPTS = 3


class Process:
    """A call's first process. `ended` gives the wait status once init has reaped it."""

    def __init__(self, call: int, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.started: asyncio.Future[int] = loop.create_future()  # pid; OSError when it could not be started
        self.ended: asyncio.Future[int] = loop.create_future()
        # Whether it is killed because the workspace is over its limit, or not over it while the host's disk is short.
        self.past_disk = False
        self.host_disk = False
        # Whether it is killed because the sandbox holds more sockets, terminals or open files than it may.
        self.past_kernel = False
        self._loop = loop
        self._waiting: asyncio.Future[None] | None = None

    async def hear(self, limit_s: float | None) -> None:
        """Wait until it has started or ended, whichever comes next, or wake() is called, or the time is over.

        One waits at a time. Like asyncio.wait() it leaves what is waited for as it is when it is cancelled, but takes a
        turn of the loop less.
        """
        self._waiting = self._loop.create_future()
        timer = None if limit_s is None else self._loop.call_later(limit_s, self.wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Have who waits in hear() go on."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Spawner:
    """Sends orders to init and hands its notices to whoever waits for them."""

    def __init__(self, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._control.setblocking(False)
        self._processes: dict[int, Process] = {}
        self._next_call = 0
        self._answers: deque[asyncio.Future[int]] = deque()  # init answers orders to signal in the order they came
        self._waiting: deque[tuple[bytes, list[int]]] = deque()  # orders that init's queue had no room for
        self._loop.add_reader(control.fileno(), self._notice)

    async def start(
        self,
        argv: list[bytes],
        env: list[bytes],
        cwd: bytes,
        stdio: list[int],
        *,
        terminal: bool = False,
        limit_s: float = START_LIMIT_S,
    ) -> Process:
        """Start a program with stdout, stderr and perhaps stdin; OSError says why it did not start.

        TimeoutError when it did not become its program within `limit_s`: tool code can stop it on the way there.

        With `terminal`, `stdio` is one terminal that becomes its controlling one.
        The descriptors stay the caller's and may be closed afterwards. After a start, finish with forget().
        """
        kind = SPAWN_TTY if terminal else SPAWN
        program = encode_program(argv, env, cwd)
        if len(program) <= PROGRAM_LIMIT_BYTES:
            return await self._order_patiently(kind, stdio, limit_s, program)
        file = os.memfd_create("program", os.MFD_CLOEXEC)
        try:
            _write_all(file, program)
            return await self._order_patiently(kind, [file, *stdio], limit_s)
        finally:
            os.close(file)

    async def _order_patiently(self, kind: int, fds: list[int], limit_s: float, program: bytes = b"") -> Process:
        # What a call before left behind, or was killed with, may hold its places a moment longer than the call lasted.
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._order(kind, fds, limit_s, program)
            except BlockingIOError:  # EAGAIN: no process was made
                if pause_s > _LAST_PAUSE_S:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def probe(self, output: int, daemon_socket: bytes) -> None:
        """Have a process that became the tool user say what it is (tool_probe.py) into a descriptor."""
        process = await self._order(PROBE, [output], START_LIMIT_S, daemon_socket)
        await process.ended
        self.forget(process)

    async def _order(self, kind: int, fds: list[int], limit_s: float, program: bytes = b"") -> Process:
        self._next_call = self._next_call % (CALL_NUMBERS - 1) + 1
        process = Process(self._next_call, self._loop)
        self._send(ORDER.pack(kind, process.call, 0) + program, fds)
        self._processes[process.call] = process
        try:
            # Waited for, not awaited: a cancelled start must still be killed.
            await process.hear(limit_s)
            if not process.started.done():
                await self._end_newborn(process)
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            process.started.result()
        except OSError:
            self.forget(process)
            raise
        except asyncio.CancelledError:
            await self._end_newborn(process)
            self.forget(process)
            raise
        return process

    async def _end_newborn(self, process: Process) -> None:
        """Kill what a start made of it; it may not be there yet, or be stopped on its way to its program."""
        while not process.started.done():
            await self.kill(process)
            await asyncio.wait([process.started], timeout=_NEWBORN_PAUSE_S)
        if process.started.exception() is None:
            await self.kill(process)

    async def kill(self, process: Process) -> int:
        """SIGKILL everything the call started; return how many processes survived init's time limit, normally 0."""
        return await self._ask_until_none(lambda: ORDER.pack(KILL, process.call, 0))

    async def kill_strays(self) -> int:
        """SIGKILL what was left behind by calls that nobody listens to any more; return how many processes survived."""
        # Which calls live is told anew each time: init obeys in order, so one that starts later is not there yet.
        return await self._ask_until_none(lambda: ORDER.pack(KILL_STRAYS, 0, 0) + encode_calls(list(self._processes)))

    def live(self) -> bool:
        """Return whether the first process of any call that somebody listens to has not ended."""
        return any(not process.ended.done() for process in self._processes.values())

    def mark_for_disk(self, call: int | None = None, *, host: bool = False) -> None:
        """Have it said of a call that lives, or of all, that it was killed because the workspace is over its limit.

        With `host` because the host's disk is short.
        """
        for number, process in self._processes.items():
            if call in (None, number):
                process.past_disk, process.host_disk = True, host

    def mark_for_kernel(self) -> None:
        """Have it reported of all calls that live that the sandbox holds too much of the kernel's memory."""
        for process in self._processes.values():
            process.past_kernel = True

    async def hold_everything(self) -> int:
        """Stop everything of the tool user, but for what is stopped; return how many processes release() lets go.

        TimeoutError when some go on nevertheless. release() is due then too.
        """
        return await self._ask(ORDER.pack(HOLD, 0, 0))

    async def release(self) -> int:
        """Have what was held go on; return how many processes did so before, whatever had them."""
        return await self._ask(ORDER.pack(RELEASE, 0, 0))

    async def kill_everything(self) -> int:
        """SIGKILL everything of the tool user; return how many processes survived."""
        return await self._ask_until_none(lambda: ORDER.pack(KILL_STRAYS, 0, 0))

    async def kill_call(self, call: int) -> int:
        """SIGKILL what a call started, whether or not anybody listens to it; return how many processes survived."""
        return await self._ask_until_none(lambda: ORDER.pack(KILL, call, 0))

    async def signal(self, process: Process, number: int) -> None:
        """Send a signal to the process group of the first process; ProcessLookupError when that is over."""
        await self._ask(ORDER.pack(SIGNAL, process.call, number))

    async def signal_tree(self, process: Process, number: int) -> int:
        """Send a signal once to everything the call started; return to how many processes."""
        return await self._ask(ORDER.pack(SIGNAL_TREE, process.call, number))

    async def _ask_until_none(self, order: Callable[[], bytes]) -> int:
        # Init stops after a while to serve others, though a fork bomb may need more, for init gets its share only.
        alive = 1
        attempts = 0
        while alive and attempts < _KILL_ATTEMPTS:
            alive = await self._ask(order())
            attempts += 1
        return alive

    async def _ask(self, order: bytes) -> int:
        answer: asyncio.Future[int] = self._loop.create_future()
        self._send(order, [])
        self._answers.append(answer)
        value = await answer
        if value < 0:
            raise OSError(-value, os.strerror(-value))
        return value

    def is_live(self, call: int) -> bool:
        """Return whether somebody still listens to a call."""
        return call in self._processes

    def forget(self, process: Process) -> None:
        """Stop listening for notices of a call; what it left behind lives on."""
        self._processes.pop(process.call, None)

    def _send(self, order: bytes, fds: list[int]) -> None:
        if not self._waiting:
            try:
                socket.send_fds(self._control, [order], fds)
            except BlockingIOError:
                pass
            else:
                return
        copies: list[int] = []
        try:
            copies.extend(map(os.dup, fds))  # extends one by one, so what was made is known when the next one fails
        except OSError:
            for fd in copies:
                os.close(fd)
            raise
        self._waiting.append((order, copies))
        if len(self._waiting) == 1:
            self._loop.add_writer(self._control.fileno(), self._flush)

    def _flush(self) -> None:
        while self._waiting:
            order, fds = self._waiting[0]
            try:
                socket.send_fds(self._control, [order], fds)
            except BlockingIOError:
                return
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._control.fileno())

    def _notice(self) -> None:
        # One a turn: they mostly come alone, and a burst of exits must not starve everybody else.
        try:
            data = self._control.recv(NOTICE.size)
        except BlockingIOError:
            return
        if len(data) != NOTICE.size:
            os._exit(71)  # init is gone or broken, and with it the sandbox
        kind, call, value, pid = NOTICE.unpack(data)
        if kind == DONE:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(value)
            return
        process = self._processes.get(call)
        if process is None:
            return
        if kind == STARTED:
            process.started.set_result(pid)
        elif kind == FAILED:
            process.started.set_exception(OSError(value, os.strerror(value)))
        elif kind == EXITED and not process.ended.done():
            process.ended.set_result(value)
        process.wake()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
