"""The client's side of ProcessService: programs with streams, and background processes.

result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
server = await airlock.start_process(["python3", "-m", "http.server"], thread="t1")
async for piece in airlock.process_output("t1", server.id, follow=True):
    ...
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import grpc.aio

from gateway.client.wire import Input, Wire, check_input, message, pause, pieces, raise_error
from gateway.errors import Conflict, Internal, InvalidArgument, Overloaded, Unavailable
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb

# What is collected in this process' memory, where nothing else was asked for.
_COLLECTED_LIMIT_BYTES = 64 * 1024 * 1024
_WAIT_S = 60.0
_MS_LIMIT = 2**32 - 1

OnProgramOutput = Callable[[str, bytes], Awaitable[None] | None]
"""Gets "stdout" or "stderr", and bytes in order of arrival; while it is awaited, the program is held back."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended.

    `outcome` is exited, signalled, timed_out, out_of_memory, pids_limit, output_limit, daemon_lost or failed_to_start.
    `exit_code` is set for exited, `signal` for signalled, `errno` (Linux', else 0) where the kernel did not start it.
    `message` says what an outcome other than exited means. The output is empty where `on_output` was given; what came
    before a limit or a timeout is there. `output_bytes` counts both streams, whoever took them.
    """

    call_id: str
    thread: str
    outcome: str
    exit_code: int | None
    signal: int | None
    errno: int
    message: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    output_bytes: int
    duration_ms: float

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class Process:
    """A background process, running or over.

    `outcome` is empty while its first process runs, else exited, signalled, timed_out, out_of_memory or cancelled (it
    was removed while it ran). `stdout_path` and `stderr_path` name files in the sandbox with the output from its first
    byte; they are empty while memory has all of it. They hold `stdout_path_bytes` and `stderr_path_bytes`, which are
    fewer than were written once a file has reached its limit. `stdout_closed` and `stderr_closed` say that nobody can
    write there any more. `rows` and `columns` are 0 without a terminal. `tree` counts the live processes it started,
    itself included, where the call looked: list, signal, wait.
    """

    id: str
    argv: tuple[str, ...]
    running: bool
    outcome: str
    exit_code: int | None
    signal: int | None
    started_at: datetime
    duration_ms: float
    terminal: bool
    rows: int
    columns: int
    stdin_open: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    stdout_path: str
    stderr_path: str
    stdout_path_bytes: int
    stderr_path_bytes: int
    stdout_closed: bool
    stderr_closed: bool
    tree: int


@dataclass(frozen=True)
class Processes:
    """A thread's background processes, the oldest first; `strays` live processes were left behind by commands."""

    processes: tuple[Process, ...]
    strays: int


@dataclass(frozen=True)
class ProcessOutput:
    """A piece of output; `offset` is more than where the last one ended when bytes in between are lost."""

    offset: int
    data: bytes


class ProcessCalls(Wire):
    """The calls of ProcessService. Failures are classes of gateway.errors; a refusal by policy is PermissionDenied."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._processes: Any = grpc_pb.ProcessServiceStub(self._channel)

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        thread: str = "default",
        stdin: Input | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        output_limit_bytes: int | None = None,
        on_output: OnProgramOutput | None = None,
    ) -> ProgramResult:
        """Run a program to its end; cancelling the await kills everything it started.

        `stdin` may be endless as long as the program reads. Without `timeout_s` the policy's longest applies. Output is
        collected, 64 MiB unless `output_limit_bytes` says otherwise, or given to `on_output`, 1 GiB.
        """
        if output_limit_bytes is None and on_output is None:
            output_limit_bytes = _COLLECTED_LIMIT_BYTES
        if stdin is not None:
            check_input(stdin)
        opening = message(
            pb.RunProgram,
            program=_program(thread, argv, cwd, env),
            timeout_ms=_ms(timeout_s),
            stdin=stdin is not None,
            output_limit_bytes=output_limit_bytes or 0,
        )
        collected = {"stdout": bytearray(), "stderr": bytearray()}
        async with _Running(self._open(self._processes.RunProgram), opening, stdin) as running:
            async for stream, data in running.output():
                if on_output is None:
                    collected[stream] += data
                elif inspect.isawaitable(taken := on_output(stream, data)):
                    await taken
        end = running.end
        return ProgramResult(
            call_id=end.call_id,
            thread=thread,
            outcome=end.outcome,
            exit_code=end.exit_code if end.HasField("exit_code") else None,
            signal=end.signal if end.HasField("signal") else None,
            errno=end.errno,
            message=end.message,
            stdout_bytes=bytes(collected["stdout"]),
            stderr_bytes=bytes(collected["stderr"]),
            output_bytes=end.output_bytes,
            duration_ms=end.duration_ms,
        )

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        thread: str = "default",
        process_id: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        terminal: bool = False,
        rows: int = 24,
        columns: int = 80,
        stdin: bool = False,
        merge_stderr: bool = False,
        timeout_s: float | None = None,
    ) -> Process:
        """Start a background process; without `timeout_s` it has no time limit, not even the policy's.

        It is started once, however often a broken connection makes the client ask: its id, which the client makes
        where none is given, is in use then. Raises StartFailed where the kernel does not start it, Conflict where
        `process_id` is in use, Exhausted where 64 run. 64 are kept, running or ended: one more forgets the oldest that
        has ended, with its output.
        """
        request = message(
            pb.StartProcessRequest,
            program=_program(thread, argv, cwd, env),
            id=process_id or f"proc_{uuid.uuid4().hex}",
            terminal=terminal,
            size=message(pb.WindowSize, rows=rows, columns=columns) if terminal else None,
            stdin=stdin,
            merge_stderr=merge_stderr,
            timeout_ms=_ms(timeout_s),
        )
        attempts = self._attempts()
        asked_before = False
        while True:
            try:
                return _process((await self._unary(self._processes.StartProcess, request)).process)
            except Conflict as error:
                started = await self._kept(request) if asked_before else None
                if started is not None and started.argv == tuple(request.program.argv):
                    return started
                if started is not None or not asked_before:
                    raise
                # The attempt that was lost is starting it just now.
                await pause(attempts.pause_s(Unavailable(str(error))), None, error)
            except (Unavailable, Overloaded) as error:
                await pause(attempts.pause_s(error), None, error)
                asked_before = asked_before or isinstance(error, Unavailable)

    async def _kept(self, request: pb.StartProcessRequest) -> Process | None:
        """Return the process that has a request's id; None where there is none."""
        found = (await self.processes(request.program.thread or "default")).processes
        return next((one for one in found if one.id == request.id), None)

    async def processes(self, thread: str = "default") -> Processes:
        """Return a thread's background processes."""
        response = await self._unary(
            self._processes.ListProcesses, message(pb.ListProcessesRequest, thread=thread), safe=True
        )
        return Processes(tuple(_process(process) for process in response.processes), response.strays)

    async def process_output(
        self, thread: str, process_id: str, *, stderr: bool = False, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[ProcessOutput]:
        """Yield output from an offset: what there is, or with `follow` until nobody can write any more.

        Where the connection breaks, or the gateway is restarted, it goes on with the byte after the last that came.
        Raises NotFound, and Unavailable when the gateway stays away.
        """
        following = offset

        def request() -> pb.ReadProcessRequest:
            return message(
                pb.ReadProcessRequest, thread=thread, id=process_id, stderr=stderr, offset=following, follow=follow
            )

        async for piece in self._resumed(self._processes.ReadProcess, request):
            following = piece.offset + len(piece.data)
            yield ProcessOutput(piece.offset, piece.data)

    async def write_process(
        self,
        thread: str,
        process_id: str,
        data: bytes | bytearray | memoryview,
        *,
        end: bool = False,
        timeout_s: float | None = None,
    ) -> Process:
        """Write to standard input, 1 MiB at most; with `end`, close it after that (on a terminal: end of file).

        Raises InputNotTaken when the process did not read all of it in time, 60 s at most, and ProcessEnded when nobody
        can read it; `details["taken_bytes"]` of both says how much was taken.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgument(f"data: bytes are expected, not {type(data).__name__}; encode a text first")
        request = message(pb.WriteProcessRequest, thread=thread, id=process_id, data=bytes(data), end=end)
        return _process((await self._unary(self._processes.WriteProcess, request, timeout_s)).process)

    async def resize_process(self, thread: str, process_id: str, rows: int, columns: int) -> Process:
        """Change the size of a process' terminal."""
        size = message(pb.WindowSize, rows=rows, columns=columns)
        request = message(pb.ResizeProcessRequest, thread=thread, id=process_id, size=size)
        return _process((await self._unary(self._processes.ResizeProcess, request, safe=True)).process)

    async def signal_process(self, thread: str, process_id: str, signal: int, *, tree: bool = False) -> Process:
        """Send a signal to a process' group, or with `tree` to everything it started.

        Raises ProcessEnded where the group is no more; its tree may be.
        """
        request = message(pb.SignalProcessRequest, thread=thread, id=process_id, signal=signal, tree=tree)
        return _process((await self._unary(self._processes.SignalProcess, request)).process)

    async def kill_strays(self, thread: str = "default") -> int:
        """Kill what commands of a thread left running and return how many live still; background processes stay."""
        response = await self._unary(self._processes.KillStrays, message(pb.KillStraysRequest, thread=thread))
        return int(response.left)

    async def wait_process(self, thread: str, process_id: str, *, timeout_s: float | None = None) -> Process:
        """Wait for the end of a process; without `timeout_s` as long as it takes. Then it may still be running."""
        if timeout_s is not None and not 0 <= timeout_s < math.inf:  # NaN too
            raise InvalidArgument(
                f"timeout_s {timeout_s!r}: seconds from 0 on; leave it out to wait as long as it takes"
            )
        request = message(pb.WaitProcessRequest, thread=thread, id=process_id)
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            # The gateway answers before the call's own deadline; the second is for the way.
            process = _process(
                (await self._unary(self._processes.WaitProcess, request, min(left_s, _WAIT_S) + 1.0, safe=True)).process
            )
            if not process.running or time.monotonic() >= deadline_s:
                return process

    async def remove_process(self, thread: str, process_id: str) -> Process:
        """Kill everything a process started and forget it; return how it was. Its output files stay."""
        request = message(pb.RemoveProcessRequest, thread=thread, id=process_id)
        return _process((await self._unary(self._processes.RemoveProcess, request)).process)


class _Running:
    """One RunProgram call: input goes out beside the output that comes in. Leaving it ends the program."""

    def __init__(self, call: Any, opening: pb.RunProgram, stdin: Input | None) -> None:
        self._call = call
        self._opening = opening
        self._stdin = stdin
        self._failure: Exception | None = None
        self._end: pb.ProgramEnd | None = None
        self._feeding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._feeding = asyncio.create_task(self._feed())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._call.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)

    @property
    def end(self) -> pb.ProgramEnd:
        """How the program ended."""
        if self._end is None:
            raise Internal("the stream ended without a result")
        return self._end

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield output in order of arrival."""
        try:
            async for said in self._call:
                kind = said.WhichOneof("response")
                if kind == "end":
                    self._end = said.end
                    return
                yield kind, getattr(said, kind)
        except grpc.aio.AioRpcError as error:
            raise_error(error)
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None  # the caller's own input failed, and _feed took the call back

    async def _feed(self) -> None:
        """Send the program, then its input."""
        try:
            await self._call.write(pb.RunProgramRequest(run=self._opening))
            if self._stdin is not None:
                async for piece in pieces(self._stdin):
                    await self._call.write(pb.RunProgramRequest(stdin=piece))
                await self._call.write(pb.RunProgramRequest(end=True))
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over; its status says why
        except Exception as error:
            self._failure = error
            self._call.cancel()


def _program(thread: str, argv: Sequence[str], cwd: str, env: Mapping[str, str] | None) -> pb.Program:
    if isinstance(argv, str | bytes):
        raise InvalidArgument(
            'argv: a list of words is expected, such as ["ls", "-l"]; a line is for sh: ["sh", "-c", LINE]'
        )
    try:
        variables = dict(env or {})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"env: a mapping of names to values is expected: {error}") from error
    return message(pb.Program, thread=thread, argv=argv, cwd=cwd, env=variables)


def _ms(timeout_s: float | None) -> int:
    """Return a limit as the wire has it, where 0 means that none was given."""
    if timeout_s is None:
        return 0
    if not 0 < timeout_s <= _MS_LIMIT / 1000:  # NaN too
        raise InvalidArgument(
            f"timeout_s {timeout_s!r}: more than 0 and {_MS_LIMIT // 1000:,} at most; leave it out for the longest "
            "that is allowed"
        )
    return max(math.ceil(timeout_s * 1000), 1)


def _process(process: pb.Process) -> Process:
    return Process(
        id=process.id,
        argv=tuple(process.argv),
        running=process.running,
        outcome=process.outcome,
        exit_code=process.exit_code if process.HasField("exit_code") else None,
        signal=process.signal if process.HasField("signal") else None,
        started_at=process.started_at.ToDatetime(UTC),
        duration_ms=process.duration_ms,
        terminal=process.terminal,
        rows=process.size.rows,
        columns=process.size.columns,
        stdin_open=process.stdin_open,
        stdout_size_bytes=process.stdout_size_bytes,
        stderr_size_bytes=process.stderr_size_bytes,
        stdout_path=process.stdout_path,
        stderr_path=process.stderr_path,
        stdout_path_bytes=process.stdout_path_bytes,
        stderr_path_bytes=process.stderr_path_bytes,
        stdout_closed=process.stdout_closed,
        stderr_closed=process.stderr_closed,
        tree=process.tree,
    )
