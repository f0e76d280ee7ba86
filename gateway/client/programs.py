"""The client's side of RunProgram: a program in a thread's sandbox, its input and output as streams, and its end.

result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.client.input import Input, Source
from gateway.client.messages import message, record
from gateway.client.request_stream import RequestStream
from gateway.client.wire import OfCaller, OnOutput, Wire, give, pause
from gateway.errors import InProgress, Internal, InvalidArgument, Overloaded, Unavailable
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb

# What is collected in this process' memory, where nothing else was asked for.
_COLLECTED_LIMIT_BYTES = 64 * 1024 * 1024
_MS_LIMIT = 2**32 - 1


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended.

    `outcome` is exited, signalled, timed_out, out_of_memory, pids_limit, disk_limit, output_limit, daemon_lost or
    failed_to_start.
    `exit_code` is set for exited, `signal` for signalled, `errno` (Linux', else 0) where the kernel did not start it.
    `message` says what an outcome other than exited means. The output is empty where `on_output` was given; what came
    before a limit or a timeout is there. `output_bytes` counts both streams. `repeated`: it ran for
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

    @property
    def _programs(self) -> Any:
        return self._stub(grpc_pb.ProcessServiceStub)

    async def run_program(  # noqa: PLR0913 - the public client: one keyword per option
        self,
        argv: Sequence[str],
        *,
        thread: str = "default",
        stdin: Input | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        output_limit_bytes: int | None = None,
        on_output: OnOutput | None = None,
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
        source = None if stdin is None else Source(stdin)
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
            else:
                await give(on_output, stream, data)

        try:
            end = await self._ran(opening, source, take)
        except OfCaller as caller:
            raise caller.error from None
        if end.repeated and not request_id:
            _check_whole(end, came_bytes)
        stdout, stderr = bytes(collected["stdout"]), bytes(collected["stderr"])
        return record(ProgramResult, end, thread=thread, stdout_bytes=stdout, stderr_bytes=stderr)

    async def _ran(
        self, opening: pb.RunProgram, stdin: Source | None, take: Callable[[str, bytes], Awaitable[None]]
    ) -> pb.ProgramEnd:
        """Run a program, however often the connection breaks, and return its end."""
        attempts = self._attempts()
        again = stdin is None or stdin.repeatable
        while True:
            try:
                return await self._ran_once(opening, stdin, take)
            except (Unavailable, Overloaded, InProgress) as error:
                await pause(attempts.pause_s(error) if again else None, None, error)

    async def _ran_once(
        self, opening: pb.RunProgram, stdin: Source | None, take: Callable[[str, bytes], Awaitable[None]]
    ) -> pb.ProgramEnd:
        """Run a program and return its end; leaving ends the program."""
        with self._translated():
            call = self._open(self._programs.RunProgram)
            async with RequestStream(call, _requests(opening, stdin)):
                async for said in call:
                    kind = said.WhichOneof("response")
                    if kind == "end":
                        end: pb.ProgramEnd = said.end
                        return end
                    await take(kind, getattr(said, kind))
        raise Internal("the stream ended without a result")


async def _requests(opening: pb.RunProgram, stdin: Source | None) -> AsyncGenerator[pb.RunProgramRequest]:
    """Yield the program, then its input."""
    if stdin is None:
        yield pb.RunProgramRequest(run=opening)
        return
    async with stdin.reading() as pieces:
        yield pb.RunProgramRequest(run=opening)
        async for piece in pieces:
            yield pb.RunProgramRequest(stdin=piece)
        yield pb.RunProgramRequest(end=True)


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
