"""Programs in the Python client: their input and output are streams.

result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from gateway.client.input import Input, RequestStream, Source
from gateway.client.messages import Fields, message, record
from gateway.client.wire import OfCaller, OnOutput, Wire, give
from gateway.errors import Internal, InvalidArgument, Unavailable
from gateway.v1 import process_service_pb2 as pb

# The default for output that is collected in memory.
_COLLECTED_LIMIT_BYTES = 64 * 1024 * 1024
_MS_LIMIT = 2**32 - 1


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


class ProgramOptions(TypedDict, total=False):
    """How to start a program: its `thread`, by default "default", working directory, environment and time limit."""

    thread: str
    cwd: str
    env: Mapping[str, str] | None
    timeout_s: float | None
    request_id: str


class ProgramCalls(Wire):
    """The call that runs a program to its end; a refusal by policy is PermissionDenied."""

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
        opening = message(
            pb.RunProgram,
            stdin=stdin is not None,
            output_limit_bytes=output_limit_bytes or 0,
            **program_fields(argv, **options),
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
            again = source is None or source.repeatable
            end = await self._again(lambda _: self._ran(opening, source, take), safe=again)
        except OfCaller as caller:
            raise caller.error from None
        if end.repeated and not options.get("request_id"):
            _check_whole(end, came_bytes)
        stdout, stderr = bytes(collected["stdout"]), bytes(collected["stderr"])
        thread = opening.program.thread
        return record(ProgramResult, end, thread=thread, stdout_bytes=stdout, stderr_bytes=stderr)

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
