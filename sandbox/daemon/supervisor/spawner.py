"""The server's end of the line to init: starts processes, learns of their end, signals and kills call trees."""

import asyncio
import errno
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sandbox.daemon.supervisor import control_wire

# How long a start may take unless its call says less.
START_LIMIT_S = 10.0
# A start that fails for lack of a process slot is retried for two thirds of a second in all.
_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 0.32


class Process:
    """A call's first process. `ended` gives the wait status once init has reaped it."""

    def __init__(self, call: int, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.started: asyncio.Future[int] = loop.create_future()  # pid; OSError when it could not be started
        self.ended: asyncio.Future[int] = loop.create_future()
        # Whether it is killed for exceeding the workspace's limit, or because the host's disk is short.
        self.past_disk = False
        self.host_disk = False
        # Whether it is killed because the sandbox has too many sockets, terminals or open files.
        self.past_kernel = False
        self._loop = loop
        self._waiting: asyncio.Future[None] | None = None

    async def changed(self, limit_s: float | None) -> None:
        """Wait until it starts or ends, wake() is called, or `limit_s` passes; for one waiter at a time."""
        # Like asyncio.wait(), but saves an iteration of the event loop.
        self._waiting = self._loop.create_future()
        timer = None if limit_s is None else self._loop.call_later(limit_s, self.wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Spawner:
    """Sends orders to init and dispatches its notices."""

    def __init__(self, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._control.setblocking(False)
        self._processes: dict[int, Process] = {}
        self._next_call = 0
        self._answers: deque[asyncio.Future[int]] = deque()  # in order, as init answers
        self._waiting: deque[tuple[bytes, list[int]]] = deque()  # orders that did not fit into init's queue
        self._rules = RuleNumbers(lambda number, rules: self._send(control_wire.FILE_RULES, 0, number, rules))
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
        file_rules: bytes | None = None,
    ) -> Process:
        """Start a program with stdout, stderr and optionally stdin; OSError if it does not start.

        TimeoutError if it is not executed within `limit_s`: tool code can stop it before. With `terminal`, `stdio` is
        one terminal that becomes its controlling one. `file_rules`, encoded, hold for it and all that it starts. The
        caller closes the descriptors, and finishes a started process with forget().
        """
        kind = control_wire.SPAWN_TTY if terminal else control_wire.SPAWN
        program = control_wire.encode_program(argv, env, cwd)
        if len(program) <= control_wire.PROGRAM_LIMIT_BYTES:
            return await self._order_with_retries(kind, stdio, limit_s, program, file_rules)
        file = os.memfd_create("program", os.MFD_CLOEXEC)
        try:
            _write_all(file, program)
            return await self._order_with_retries(kind, [file, *stdio], limit_s, b"", file_rules)
        finally:
            os.close(file)

    async def _order_with_retries(
        self, kind: int, fds: list[int], limit_s: float, program: bytes, file_rules: bytes | None
    ) -> Process:
        # The processes of an earlier call may occupy their slots a moment longer than the call itself.
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                with self._rules.used(file_rules) as number:
                    return await self._order(kind, fds, limit_s, program, number)
            except BlockingIOError:  # EAGAIN: no process was created
                if pause_s > _LAST_PAUSE_S:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def probe(self, output: int, daemon_socket: bytes) -> None:
        """Have a process that became the tool user describe itself (describe_tool() of launch.py) to a descriptor."""
        process = await self._order(control_wire.PROBE, [output], START_LIMIT_S, daemon_socket)
        await process.ended
        self.forget(process)

    async def _order(self, kind: int, fds: list[int], limit_s: float, program: bytes, rules: int = 0) -> Process:
        self._next_call = self._next_call % (control_wire.CALL_NUMBERS - 1) + 1
        process = Process(self._next_call, self._loop)
        self._send(kind, process.call, rules, program, fds)
        self._processes[process.call] = process
        try:
            # Not awaiting `started` itself: a cancelled start must still be killed.
            await process.changed(limit_s)
            if not process.started.done():
                await self._kill_pending(process)
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            process.started.result()
        except OSError:
            self.forget(process)
            raise
        except asyncio.CancelledError:
            await self._kill_pending(process)
            self.forget(process)
            raise
        return process

    async def _kill_pending(self, process: Process) -> None:
        """Kill what a start created; it may not exist yet, or be stopped before it executes its program."""
        while not process.started.done():
            await self.kill(process)
            await asyncio.wait([process.started], timeout=0.02)
        if process.started.exception() is None:
            await self.kill(process)

    async def kill(self, process: Process) -> int:
        """SIGKILL everything the call started; return how many processes survived, normally 0."""
        return await self.kill_call(process.call)

    async def kill_strays(self) -> int:
        """SIGKILL what finished calls left behind; return how many processes survived."""
        # Encoded for each attempt: init obeys in order, so calls that start later are not affected.
        return await self._kill(control_wire.KILL_STRAYS, rest=lambda: control_wire.encode_calls(list(self._processes)))

    def live(self) -> bool:
        """Return whether the first process of any current call has not ended."""
        return any(not process.ended.done() for process in self._processes.values())

    def mark_for_disk(self, call: int | None = None, *, host: bool = False) -> None:
        """Record for a call, or all, that it is killed for the workspace's limit or, with `host`, the host's disk."""
        for number, process in self._processes.items():
            if call in (None, number):
                process.past_disk, process.host_disk = True, host

    def mark_for_kernel(self) -> None:
        """Record for all calls that they are killed because the sandbox has too many kernel objects."""
        for process in self._processes.values():
            process.past_kernel = True

    async def pause_everything(self) -> int:
        """Stop all running tool processes; return their number.

        TimeoutError if some keep running; call resume() also then.
        """
        return await self._ask(control_wire.PAUSE)

    async def resume(self) -> int:
        """Resume what was paused; return how many processes ran meanwhile."""
        return await self._ask(control_wire.RESUME)

    async def kill_everything(self) -> int:
        return await self._kill(control_wire.KILL_STRAYS)

    async def kill_call(self, call: int) -> int:
        """SIGKILL what a call started, current or not; return how many processes survived."""
        return await self._kill(control_wire.KILL, call)

    async def signal(self, process: Process, number: int) -> None:
        """Send a signal to the process group of the first process; ProcessLookupError if that has ended."""
        await self._ask(control_wire.SIGNAL, process.call, number)

    async def signal_tree(self, process: Process, number: int) -> int:
        """Send a signal once to everything the call started; return the number of processes."""
        return await self._ask(control_wire.SIGNAL_TREE, process.call, number)

    async def _kill(self, kind: int, call: int = 0, rest: Callable[[], bytes] = bytes) -> int:
        # Init gives up after a while to serve other orders, and a fork bomb may take longer.
        alive = 1
        for _ in range(3):
            if not (alive := await self._ask(kind, call, rest=rest())):
                break
        return alive

    async def _ask(self, kind: int, call: int = 0, value: int = 0, rest: bytes = b"") -> int:
        answer: asyncio.Future[int] = self._loop.create_future()
        self._send(kind, call, value, rest)
        self._answers.append(answer)
        value = await answer
        if value < 0:
            raise OSError(-value, os.strerror(-value))
        return value

    def is_live(self, call: int) -> bool:
        return call in self._processes

    def forget(self, process: Process) -> None:
        """Finish a call; what it left behind keeps running."""
        self._processes.pop(process.call, None)

    def _send(self, kind: int, call: int, value: int, rest: bytes, fds: Sequence[int] = ()) -> None:
        order = control_wire.ORDER.pack(kind, call, value) + rest
        if not self._waiting and self._is_sent(order, fds):
            return
        copies: list[int] = []
        try:
            copies.extend(map(os.dup, fds))  # one by one, so the copies are known if dup() fails
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
            if not self._is_sent(order, fds):
                return
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._control.fileno())

    def _is_sent(self, order: bytes, fds: Sequence[int]) -> bool:
        """Send an order; return False if init's queue is full."""
        try:
            socket.send_fds(self._control, [order], fds)
        except BlockingIOError:
            return False
        return True

    def _notice(self) -> None:
        # One per iteration: a burst of exits must not starve other tasks.
        try:
            data = self._control.recv(control_wire.NOTICE.size)
        except BlockingIOError:
            return
        if len(data) != control_wire.NOTICE.size:
            os._exit(71)  # init is gone or broken, and with it the sandbox
        kind, call, value, pid = control_wire.NOTICE.unpack(data)
        if kind == control_wire.DONE:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(value)
            return
        process = self._processes.get(call)
        if process is None:
            return
        if kind == control_wire.STARTED:
            process.started.set_result(pid)
        elif kind == control_wire.FAILED:
            process.started.set_exception(OSError(value, os.strerror(value)))
        elif kind == control_wire.EXITED and not process.ended.done():
            process.ended.set_result(value)
        process.wake()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class RuleNumbers:
    """Gives a number to each file rules in use, and that of the least recently used ones to new ones."""

    def __init__(self, announce: Callable[[int, bytes], None]) -> None:
        """`announce` reports to init what a number means."""
        self._announce = announce
        self._numbers: dict[bytes, int] = {}  # the least recently used first
        self._starts: Counter[int] = Counter()

    @contextmanager
    def used(self, rules: bytes | None) -> Iterator[int]:
        """Have a number of file rules, 0 for none, during a start.

        BlockingIOError when all have a start under way; OSError for rules that are too long, which init would cut.
        """
        if rules is None:
            yield 0
            return
        if len(rules) > control_wire.FILE_RULES_LIMIT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        number = self._numbers.pop(rules, 0)
        if not number:
            number = self._free()
            self._announce(number, rules)
        self._numbers[rules] = number
        self._starts[number] += 1
        try:
            yield number
        finally:
            self._starts[number] -= 1

    def _free(self) -> int:
        # Also one that could not be announced, so not the next after those in use.
        free = set(range(1, control_wire.FILE_RULES_LIMIT + 1)).difference(self._numbers.values())
        if free:
            return min(free)
        for rules, number in self._numbers.items():
            if not self._starts[number]:
                del self._numbers[rules]
                return number
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
