"""The client's side of RunProgram: a program in a thread's sandbox, its input and output as streams, and its end.

result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
"""

from __future__ import annotations

import asyncio
import inspect
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc.aio

from gateway.client.wire import Input, Wire, check_input, message, pause, pieces, raise_error
from gateway.errors import InProgress, Internal, InvalidArgument, Overloaded, Unavailable
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb

# What is collected in this process' memory, where nothing else was asked for.
_COLLECTED_LIMIT_BYTES = 64 * 1024 * 1024
_MS_LIMIT = 2**32 - 1

OnProgramOutput = Callable[[str, bytes], Awaitable[None] | None]
"""Gets "stdout" or "stderr", and bytes in order of arrival; while it is awaited, the program is held back."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended.

    `outcome` is exited, signalled, timed_out, out_of_memory, pids_limit, disk_limit, output_limit, daemon_lost or
    failed_to_start.
    `exit_code` is set for exited, `signal` for signalled, `errno` (Linux', else 0) where the kernel did not start it.
    `message` says what an outcome other than exited means. The output is empty where `on_output` was given; what came
    before a limit or a timeout is there. `output_bytes` counts both streams, whoever took them. `repeated`: it ran for
    an earlier request with the same id, which had its output; `outcome` may be cancelled or interrupted then.
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

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")


class ProgramCalls(Wire):
    """The call of ProcessService that runs a program to its end; a refusal by policy is PermissionDenied."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._programs: Any = grpc_pb.ProcessServiceStub(self._channel)

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
        request_id: str = "",
    ) -> ProgramResult:
        """Run a program to its end; cancelling the await kills everything it started.

        `stdin` may be endless as long as the program reads. Without `timeout_s` the policy's longest applies. Output is
        collected, 64 MiB unless `output_limit_bytes` says otherwise, or given to `on_output`, 1 GiB.

        It runs once, however often a broken connection makes the client ask; where its output was lost with the
        connection it is Unavailable, whose details have its `outcome`, and its `exit_code` where it has one. With a
        `request_id` of your own you may ask again yourself, and get its end alone, `repeated`. A `stdin` that is not
        bytes cannot be sent again. Raises InvalidArgument, RequestIdReused, InProgress, PermissionDenied, Unavailable.
        """
        if output_limit_bytes is None and on_output is None:
            output_limit_bytes = _COLLECTED_LIMIT_BYTES
        if stdin is not None:
            check_input(stdin)
        opening = message(
            pb.RunProgram,
            program=program_message(thread, argv, cwd, env),
            timeout_ms=limit_ms(timeout_s),
            stdin=stdin is not None,
            output_limit_bytes=output_limit_bytes or 0,
            request_id=request_id or str(uuid.uuid4()),
        )
        collected = {"stdout": bytearray(), "stderr": bytearray()}
        came_bytes = 0

        async def take(stream: str, data: bytes) -> None:
            nonlocal came_bytes
            came_bytes += len(data)
            if on_output is None:
                collected[stream] += data
            elif inspect.isawaitable(taken := on_output(stream, data)):
                await taken

        end = await self._ran(opening, stdin, take)
        if end.repeated and not request_id:
            _check_whole(end, came_bytes)
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
            repeated=end.repeated,
        )

    async def _ran(
        self, opening: pb.RunProgram, stdin: Input | None, take: Callable[[str, bytes], Awaitable[None]]
    ) -> pb.ProgramEnd:
        """Run a program, however often the connection breaks, and return its end."""
        attempts = self._attempts()
        again = stdin is None or isinstance(stdin, bytes | bytearray | memoryview)
        while True:
            try:
                async with _Running(self._open(self._programs.RunProgram), opening, stdin) as running:
                    async for stream, data in running.output():
                        await take(stream, data)
                return running.end
            except (Unavailable, Overloaded, InProgress) as error:
                await pause(attempts.pause_s(error) if again else None, None, error)


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
        except Exception as error:  # whatever the caller's input raises, for the caller to see
            self._failure = error
            self._call.cancel()


def _check_whole(end: pb.ProgramEnd, came_bytes: int) -> None:
    """Raise Unavailable where a program ran whose output, or part of it, was lost with the connection."""
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


def program_message(thread: str, argv: Sequence[str], cwd: str, env: Mapping[str, str] | None) -> pb.Program:
    """Return a program as the wire has it."""
    if isinstance(argv, str | bytes):
        raise InvalidArgument(
            'argv: a list of words is expected, such as ["ls", "-l"]; a line is for sh: ["sh", "-c", LINE]'
        )
    try:
        variables = dict(env or {})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"env: a mapping of names to values is expected: {error}") from error
    return message(pb.Program, thread=thread, argv=argv, cwd=cwd, env=variables)


def limit_ms(timeout_s: float | None) -> int:
    """Return a limit as the wire has it, where 0 means that none was given."""
    if timeout_s is None:
        return 0
    if not 0 < timeout_s <= _MS_LIMIT / 1000:  # NaN too
        raise InvalidArgument(
            f"timeout_s {timeout_s!r}: more than 0 and {_MS_LIMIT // 1000:,} at most; leave it out for the longest "
            "that is allowed"
        )
    return max(math.ceil(timeout_s * 1000), 1)
