"""One background process: its request, its streams, how it ended, and its report."""

from __future__ import annotations

import asyncio
import os
import signal
import string
import time

from sandbox.daemon.failures import check_most, invalid_argument
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.daemon.paths import PATH_LIMIT_BYTES, components, join
from sandbox.daemon.programs.exec import outcome_of
from sandbox.daemon.programs.exec_request import SPILL_LIMIT_BYTES, ProgramFields
from sandbox.daemon.programs.pipes import LingeringPipes, OutputPipe, ProgramPipes, until_silent
from sandbox.daemon.programs.process_io import OutputFile, ProcessInput, RateLimit, StreamOutput
from sandbox.daemon.supervisor.spawner import Process
from sandbox.v1 import channel_pb2 as wire

ID_LIMIT = 64
SIDE_LIMIT = 4096
DEFAULT_SIZE = (24, 80)
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-")


class StartRequest(ProgramFields):
    """What to start, from a request. `size` is (rows, columns) of the terminal, None without one."""

    def __init__(self, request: wire.ProcessStartRequest, workspace: str, environment: dict[bytes, bytes]) -> None:
        self.id = check_id(request.id)
        self.size: tuple[int, int] | None = None
        if request.terminal:
            self.size = check_size(request.size) if request.HasField("size") else DEFAULT_SIZE
            environment = {**environment, b"TERM": b"xterm-256color"}
        super().__init__(request, workspace, environment)
        self.merge_stderr = request.merge_stderr
        self.ring_bytes = request.ring_bytes or 64 * 1024
        check_most("ring_bytes", self.ring_bytes, 1024 * 1024, "(1 MiB) is the most")
        self.directory = _output_directory(request, self.id)
        self.file_limit_bytes = request.file_limit_bytes


def check_id(process_id: str) -> str:
    """Return the id of a process."""
    if not 1 <= len(process_id) <= ID_LIMIT or not _ID_CHARACTERS.issuperset(process_id):
        raise invalid_argument(f"id {process_id[:100]!r}: give 1 to {ID_LIMIT} of A-Z a-z 0-9 _ -")
    return process_id


def check_size(size: wire.WindowSize) -> tuple[int, int]:
    """Return (rows, columns) of a terminal."""
    if not (1 <= size.rows <= SIDE_LIMIT and 1 <= size.columns <= SIDE_LIMIT):
        raise invalid_argument(
            f"size is {size.rows} rows of {size.columns} columns; a terminal has 1 to {SIDE_LIMIT} of each"
        )
    return size.rows, size.columns


def check_wait(wait_ms: int) -> float:
    """Return how long to wait, in seconds."""
    check_most("wait_ms", wait_ms, 60_000, "is the most; ask again to wait longer")
    return wait_ms / 1000


def _output_directory(request: wire.ProcessStartRequest, process_id: str) -> str:
    check_most("file_limit_bytes", request.file_limit_bytes, SPILL_LIMIT_BYTES)
    if not request.output_directory:
        return ""
    if not request.file_limit_bytes:
        raise invalid_argument("file_limit_bytes is 0; say how many bytes a file in output_directory may take")
    directory = join(components(request.output_directory, "output_directory"))
    if len(directory.encode()) + len(f"/{process_id}.stdout") > PATH_LIMIT_BYTES:
        raise invalid_argument(
            f"output_directory leaves no room for a file name; {PATH_LIMIT_BYTES} bytes are the most"
        )
    return directory.rstrip("/")


_ARGV_BYTES = 4096


class BackgroundProcess:
    """A started process. It is `running` until its first process has ended and its output is read; then `over` is done.

    `ending` is the reason it is being killed, which becomes its outcome.
    """

    def __init__(self, request: StartRequest, process: Process, streams: ProcessStreams, cgroup: Cgroup) -> None:
        self.id = request.id
        self.process = process
        self.streams = streams
        self.size = request.size or DEFAULT_SIZE
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ending: wire.Outcome | None = None
        self.time_limit: asyncio.TimerHandle | None = None
        self._state = wire.Process(
            id=request.id,
            pid=process.started.result(),
            argv=_prefix(request.argv),
            running=True,
            started_ns=time.time_ns(),
            terminal=streams.terminal is not None,
        )
        self._cgroup = cgroup
        self._kills_before = cgroup.observe_kills()
        self._killed_by_caller = False
        self._clock_ns = time.monotonic_ns()
        self._duration_ns: int | None = None
        self._draining: asyncio.Task[None] | None = None
        process.ended.add_done_callback(self._end)

    @property
    def running(self) -> bool:
        return self._state.running

    def signalled(self, number: int) -> None:
        """Record a signal from the caller: a SIGKILL is then not the kernel's, for memory."""
        self._killed_by_caller = self._killed_by_caller or number == signal.SIGKILL

    def _end(self, ended: asyncio.Future[int]) -> None:
        self._duration_ns = time.monotonic_ns() - self._clock_ns
        status = ended.result()
        if self.streams.terminal is not None:
            self.streams.terminal.close_tool_ends()
        # Decided now, because later kills concern other processes.
        if self.ending is not None and os.WIFSIGNALED(status):
            outcome = self.ending
        else:
            killed_by_caller = self._killed_by_caller
            outcome = outcome_of(self.process, self._cgroup, self._kills_before, killed_by_caller=killed_by_caller)
        self._draining = asyncio.get_running_loop().create_task(self._drain(status, outcome))

    async def _drain(self, status: int, outcome: wire.Outcome) -> None:
        try:
            await self.streams.drain()
        finally:
            self._state.outcome = outcome
            if outcome == wire.OUTCOME_SIGNALLED:
                self._state.signal = os.WTERMSIG(status)
            elif outcome == wire.OUTCOME_EXITED:
                self._state.exit_code = os.WEXITSTATUS(status)
            self._state.running = False
            self.over.set_result(None)

    def report(self, tree: int = 0) -> wire.Process:
        """Return its state; `tree` is the number of its live processes."""
        duration_ns = self._duration_ns if self._duration_ns is not None else time.monotonic_ns() - self._clock_ns
        state, streams = self._state, self.streams
        state.duration_us = duration_ns // 1000
        state.stdout.CopyFrom(streams.stdout.report())
        if streams.stderr is not None:
            state.stderr.CopyFrom(streams.stderr.report())
        if streams.input is not None:
            state.stdin_open, state.stdin_taken_bytes = streams.input.is_open(), streams.input.taken_bytes
        if streams.terminal is not None:
            state.size.rows, state.size.columns = self.size
        state.tree = tree
        return state


def _prefix(argv: list[bytes]) -> list[bytes]:
    result: list[bytes] = []
    left = _ARGV_BYTES
    for argument in argv:
        if left <= 0 or len(result) >= _ARGV_BYTES:
            break
        result.append(argument[:left])
        left -= len(argument)
    return result


class ProcessStreams(ProgramPipes):
    """The daemon's ends; `stderr` is None if it is merged into stdout, `input` if there is none."""

    def __init__(self, request: StartRequest, workspace: str, rate_limit: RateLimit) -> None:
        super().__init__()
        self.terminal = None
        self.input: ProcessInput | None = None
        self._request = request
        self._workspace = workspace
        self._rate_limit = rate_limit
        self._drain_lock = asyncio.Lock()
        self.stdout = self._output("stdout")
        self.stderr = None if request.size is not None or request.merge_stderr else self._output("stderr")
        if request.size is not None:
            from sandbox.daemon.programs.terminal import Terminal

            self.terminal = Terminal(self.stdout, *request.size, rate_limit)
            self.input = self.terminal.input
            return
        try:
            self._pipes.extend(_pipe_into(output, rate_limit) for output in self._outputs())
            if request.stdin:
                self.input = ProcessInput(self._open_stdin())
        except OSError:
            self.close()
            raise

    def _output(self, name: str) -> StreamOutput:
        request, workspace = self._request, self._workspace
        path = f"{request.directory}/{request.id}.{name}"
        limit_bytes = request.file_limit_bytes
        return StreamOutput(
            request.ring_bytes, (lambda: OutputFile(path, limit_bytes, workspace)) if limit_bytes else None
        )

    def stdio(self) -> list[int]:
        return super().stdio() if self.terminal is None else self.terminal.stdio()

    async def drain(self) -> None:
        """Read everything that was written until now, then wait until the streams are closed or silent."""
        async with self._drain_lock:  # a pipe has one emptied() future at a time
            # Without the rate limit: a paused pipe has to be emptied, and a paused terminal would seem silent.
            with self._rate_limit.exempt([self.terminal] if self.terminal is not None else self._pipes):
                if self._pipes:
                    await asyncio.wait([pipe.emptied() for pipe in self._pipes])
                if self.terminal is not None:
                    await until_silent([self.terminal.closed], self._size_bytes)
            if self._pipes:
                await until_silent([pipe.closed for pipe in self._pipes], self._size_bytes)

    def _outputs(self) -> list[StreamOutput]:
        return [output for output in (self.stdout, self.stderr) if output is not None]

    def _size_bytes(self) -> int:
        return sum(output.size_bytes for output in self._outputs())

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Release pipes that other processes may still write to, and close everything else."""
        super().leave_to(lingering)
        self.close()

    def close(self) -> None:
        super().close()
        if self.terminal is not None:
            self.terminal.close()
        elif self.input is not None:
            self.input.close()
        for output in self._outputs():
            output.end()


def _pipe_into(output: StreamOutput, rate_limit: RateLimit) -> OutputPipe:
    def take(buffer: bytearray, size: int) -> None:
        output.add(buffer, size)
        rate_limit.took(pipe, size)

    pipe = OutputPipe(take)
    pipe.closed.add_done_callback(lambda _: output.end())
    return pipe
