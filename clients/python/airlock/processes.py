"""Programs, whose input and output are streams, and background processes in the Python client.

result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)

server = await airlock.start_process(["python3", "-m", "http.server"], thread="t1")
async for piece in airlock.process_output("t1", server.id, follow=True):
    ...
"""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypedDict, Unpack

from airlock.errors import CallFailed, Internal, InvalidArgument, Unavailable
from airlock.input import Input, RequestStream, Source
from airlock.messages import Fields, message, record
from airlock.v1 import process_service_pb2 as pb
from airlock.wire import OfCaller, OnOutput, Wire, give

# The default for output that is collected in memory.
_COLLECTED_LIMIT_BYTES = 64 * 1024 * 1024
_MS_LIMIT = 2**32 - 1
_SHOWN_CHARACTERS = 1000
_WAIT_S = 60.0


class OutputText:
    """The output of a result as text; bytes that are not UTF-8 are replaced."""

    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


def call_failed(outcome: str, exit_code: int | None, said: str) -> CallFailed:
    """Return the error of a call that failed; its text ends with the end of what the call said."""
    details = {"outcome": outcome} | ({} if exit_code is None else {"exit_code": str(exit_code)})
    end = said.strip()[-_SHOWN_CHARACTERS:]
    return CallFailed(" ".join(details.values()) + (f": {end}" if end else ""), **details)


@dataclass(frozen=True)
class ProgramResult(OutputText):
    """How a program ended.

    `outcome` is exited, signalled, timed_out, out_of_memory, pids_limit, disk_limit, output_limit, daemon_lost or
    failed_to_start. `exit_code` is set for exited, `signal` for signalled, `errno` (of Linux, else 0) if the kernel did
    not start it. `message` explains any outcome but exited. Output from before a limit or a timeout is included; with
    `on_output` it is empty. `output_bytes` counts both streams. If `repeated`, it ran for an earlier request with the
    same id, which got its output; `outcome` may then be cancelled or interrupted.
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
    repeated: bool = False

    def raise_for_status(self) -> Self:
        """Return this result of a program that exited 0. Raises CallFailed for any other."""
        if self.outcome == "exited" and self.exit_code == 0:
            return self
        raise call_failed(self.outcome, self.exit_code, self.message or self.stderr or self.stdout)


class ProgramOptions(TypedDict, total=False):
    """How to start a program: its `thread`, by default "default", working directory, environment and time limit."""

    thread: str
    cwd: str
    env: Mapping[str, str] | None
    timeout_s: float | None
    request_id: str


async def _requests(opening: pb.RunProgram, stdin: Source | None) -> AsyncGenerator[pb.RunProgramRequest]:
    if stdin is None:
        yield pb.RunProgramRequest(run=opening)
        return
    async with stdin.reading() as pieces:
        yield pb.RunProgramRequest(run=opening)
        async for piece in pieces:
            yield pb.RunProgramRequest(stdin=piece)
        yield pb.RunProgramRequest(end=True)


def _check_whole(end: pb.ProgramEnd, came_bytes: int) -> None:
    """Raise Unavailable if a program ran and some of its output was lost with the connection."""
    if end.outcome not in ("cancelled", "interrupted") and end.output_bytes == came_bytes:
        return
    details = {"call_id": end.call_id, "outcome": end.outcome}
    if end.HasField("exit_code"):
        details["exit_code"] = str(end.exit_code)
    ended = " ".join(details[name] for name in ("outcome", "exit_code") if name in details)
    said = f": {end.message}" if end.message else ""
    raise Unavailable(
        f"the connection broke while the program ran; it did not run again, and its output is lost ({ended}{said})",
        **details,
    )


def program_fields(
    argv: Sequence[str],
    *,
    thread: str = "default",
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    request_id: str = "",
) -> Fields:
    """Return the fields of a request that starts a program. Raises InvalidArgument."""
    if isinstance(argv, str | bytes):
        raise InvalidArgument(
            'argv: a list of words is expected, such as ["ls", "-l"]; a line is for sh: ["sh", "-c", LINE]'
        )
    try:
        variables = dict(env or {})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"env: a mapping of names to values is expected: {error}") from error
    program = message(pb.Program, thread=thread, argv=argv, cwd=cwd, env=variables)
    timeout_ms = 0
    if timeout_s is not None:
        if not 0 < timeout_s <= _MS_LIMIT / 1000:  # NaN too
            raise InvalidArgument(
                f"timeout_s {timeout_s!r}: more than 0 and {_MS_LIMIT // 1000:,} at most; leave it out for the longest "
                "that is allowed"
            )
        timeout_ms = max(math.ceil(timeout_s * 1000), 1)
    return {"program": program, "timeout_ms": timeout_ms, "request_id": request_id}


@dataclass(frozen=True)
class Process:
    """A background process, running or ended.

    `outcome` is empty while its first process runs, then exited, signalled, timed_out, out_of_memory, disk_limit or
    cancelled (it was removed while it ran). `stdout_path` and `stderr_path` name files in the sandbox with its output
    from the first byte, empty while memory has all of it; a file that has reached its limit holds fewer bytes
    (`stdout_path_bytes`, `stderr_path_bytes`) than were written. `stdout_closed` and `stderr_closed` mean that no
    process can write there any more. `rows` and `columns` are 0 without a terminal. `tree` is the number of its live
    processes, including itself, when it was listed, signalled or waited for. `stdin_taken_bytes` is how much input was
    accepted, with a terminal's end-of-file characters.
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
    stdin_taken_bytes: int = 0


@dataclass(frozen=True)
class Processes:
    """A thread's background processes, oldest first; commands left `strays` live processes behind."""

    processes: tuple[Process, ...]
    strays: int


@dataclass(frozen=True)
class ProcessOutput:
    """A piece of output; if bytes were lost, `offset` is greater than the end of the previous piece."""

    offset: int
    data: bytes


class ProcessCalls(Wire):
    """The calls of ProcessService; a refusal by policy is PermissionDenied."""

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        stdin: Input | None = None,
        output_limit_bytes: int | None = None,
        on_output: OnOutput | None = None,
        **options: Unpack[ProgramOptions],
    ) -> ProgramResult:
        """Run a program to its end; cancelling the await kills everything it started.

        `stdin` may be endless as long as the program reads. Without `timeout_s` the policy's maximum applies. Output is
        collected, at most 64 MiB unless `output_limit_bytes` says otherwise, or passed to `on_output`, at most 1 GiB.

        The client repeats the request only with a `stdin` that can be read again. If the output was lost with a
        connection, raises Unavailable, whose details have the `outcome` and any `exit_code`. If you repeat it, you get
        only its end, `repeated`. Raises InvalidArgument, RequestIdReused, InProgress, PermissionDenied, Unavailable.
        """
        if output_limit_bytes is None and on_output is None:
            output_limit_bytes = _COLLECTED_LIMIT_BYTES
        source = None if stdin is None else Source(stdin)
        asked = program_fields(argv, **options) | {"output_limit_bytes": output_limit_bytes or 0}
        opening = message(pb.RunProgram, stdin=stdin is not None, **asked)
        collected = {"stdout": bytearray(), "stderr": bytearray()}
        came_bytes = 0

        async def take(stream: str, data: bytes) -> None:
            nonlocal came_bytes
            came_bytes += len(data)
            if on_output is None:
                collected[stream] += data
            else:
                await give(on_output, stream, data)

        try:
            again = source is None or source.repeatable
            end = await self._again(lambda _: self._ran(opening, source, take), safe=again)
        except OfCaller as caller:
            raise caller.error from None
        if end.repeated and not options.get("request_id"):
            _check_whole(end, came_bytes)
        stdout, stderr = bytes(collected["stdout"]), bytes(collected["stderr"])
        thread = opening.program.thread
        return record(ProgramResult, end, thread=thread, stdout_bytes=stdout, stderr_bytes=stderr)

    async def execute(
        self,
        command: str,
        *,
        stdin: Input | None = None,
        output_limit_bytes: int | None = None,
        on_output: OnOutput | None = None,
        **options: Unpack[ProgramOptions],
    ) -> ProgramResult:
        """Run a command line with /bin/sh, as the tool `execute` does, with input, `cwd` and `env`.

        It is run_program(["/bin/sh", "-c", command]): judged as the command line, and streamed, so its output is never
        evicted. Raises as run_program.
        """
        if not isinstance(command, str):
            raise InvalidArgument("command: a command line is expected; a list of words is for run_program")
        line = ["/bin/sh", "-c", command]
        return await self.run_program(
            line, stdin=stdin, output_limit_bytes=output_limit_bytes, on_output=on_output, **options
        )

    async def _ran(
        self, opening: pb.RunProgram, stdin: Source | None, take: Callable[[str, bytes], Awaitable[None]]
    ) -> pb.ProgramEnd:
        """Run a program and return its end; leaving ends the program."""
        with self._translated():
            call = self._open(self._method(pb.RunProgramRequest))
            async with RequestStream(call, _requests(opening, stdin)):
                async for said in call:
                    kind = said.WhichOneof("response")
                    if kind == "end":
                        end: pb.ProgramEnd = said.end
                        return end
                    await take(kind, getattr(said, kind))
        raise Internal("the stream ended without a result")

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        process_id: str = "",
        terminal: bool = False,
        rows: int = 24,
        columns: int = 80,
        stdin: bool = False,
        merge_stderr: bool = False,
        **options: Unpack[ProgramOptions],
    ) -> Process:
        """Start a background process; without `timeout_s` it has no time limit, not even the policy's.

        A repeated request gets the process as it is now; NotFound once it was removed. At most 64 are kept, running or
        ended: another one replaces the oldest ended one and its output. Raises StartFailed if the kernel does not start
        it, Conflict if `process_id` is in use, Exhausted if 64 are running.
        """
        size = message(pb.WindowSize, rows=rows, columns=columns) if terminal else None
        asked = program_fields(argv, **options) | {"id": process_id, "terminal": terminal, "size": size}
        started = await self._ask(pb.StartProcessRequest, stdin=stdin, merge_stderr=merge_stderr, **asked)
        return _process(started.process)

    async def processes(self, thread: str = "default", *, running: bool | None = None) -> Processes:
        """Return a thread's background processes, with `running` only those that run, or with False that have ended."""
        found: list[Process] = []
        token = ""
        wanted: Fields = {"thread": thread, "running": running}
        while True:
            page = await self._ask(pb.ListProcessesRequest, page_token=token, **wanted)
            found += map(_process, page.processes)
            token = page.next_page_token
            if not token:
                return Processes(tuple(found), page.strays)

    async def process_output(
        self, thread: str, process_id: str, *, stderr: bool = False, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[ProcessOutput]:
        """Yield the output from an offset on, with `follow` until no process can write to it. Raises NotFound."""
        wanted: Fields = {"thread": thread, "id": process_id, "stderr": stderr, "follow": follow, "offset": offset}
        async for piece in self._resumed(pb.ReadProcessRequest, wanted):
            wanted["offset"] = piece.offset + len(piece.data)
            yield ProcessOutput(piece.offset, piece.data)

    async def write_process(
        self,
        thread: str,
        process_id: str,
        data: bytes | bytearray | memoryview,
        *,
        end: bool = False,
        timeout_s: float | None = None,
        offset: int | None = None,
        request_id: str = "",
    ) -> Process:
        """Write at most 1 MiB to standard input; with `end`, then close it (on a terminal: end of file).

        Instead of a `request_id`, the only writer may repeat it with the process' `stdin_taken_bytes` before these
        bytes as `offset` (InputGap if it is past them). Raises InputNotTaken if the process did not read all of it in
        time, at most 60 s, and ProcessEnded if no process can read it; `details["taken_bytes"]` says how much was read.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgument(f"data: bytes are expected, not {type(data).__name__}; encode a text first")
        asked: Fields = {"data": bytes(data), "end": end, "offset": offset, "request_id": request_id}
        answer = await self._ask(pb.WriteProcessRequest, timeout_s=timeout_s, thread=thread, id=process_id, **asked)
        return _process(answer.process)

    async def resize_process(self, thread: str, process_id: str, rows: int, columns: int) -> Process:
        """Change the size of a process' terminal."""
        size = message(pb.WindowSize, rows=rows, columns=columns)
        return _process((await self._ask(pb.ResizeProcessRequest, thread=thread, id=process_id, size=size)).process)

    async def signal_process(self, thread: str, process_id: str, signal: int, *, tree: bool = False) -> Process:
        """Send a signal to a process' group, or with `tree` to all its descendants.

        Raises ProcessEnded if the group is gone; its tree may not be. If the connection breaks it raises Unavailable
        and is not repeated, because a second signal has a second effect.
        """
        asked: Fields = {"signal": signal, "tree": tree}
        answer = await self._ask(pb.SignalProcessRequest, safe=False, thread=thread, id=process_id, **asked)
        return _process(answer.process)

    async def kill_strays(self, thread: str = "default") -> int:
        """Kill processes that commands left running and return how many still live; background processes stay."""
        return int((await self._ask(pb.KillStraysRequest, thread=thread)).left)

    async def wait_process(self, thread: str, process_id: str, *, timeout_s: float | None = None) -> Process:
        """Wait until a process ends or `timeout_s` has passed; it may still be running then."""
        if timeout_s is not None and not 0 <= timeout_s < math.inf:  # NaN too
            raise InvalidArgument(
                f"timeout_s {timeout_s!r}: seconds from 0 on; leave it out to wait as long as it takes"
            )
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # The gateway answers before the call's own deadline; the extra second is for transport.
            wait_s = min(max(deadline_s - time.monotonic(), 0.0), _WAIT_S) + 1.0
            answer = await self._ask(pb.WaitProcessRequest, timeout_s=wait_s, thread=thread, id=process_id)
            process = _process(answer.process)
            if not process.running or time.monotonic() >= deadline_s:
                return process

    async def remove_process(self, thread: str, process_id: str) -> Process:
        """Kill a process with its descendants and forget it; return its last state. Its output files stay.

        Raises NotFound, also if an answer was lost and it is already removed.
        """
        return _process((await self._ask(pb.RemoveProcessRequest, thread=thread, id=process_id)).process)


def _process(process: pb.Process) -> Process:
    return record(Process, process, rows=process.size.rows, columns=process.size.columns)
