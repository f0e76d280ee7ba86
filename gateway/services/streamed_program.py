"""RunProgram: one program in a thread's sandbox, its input and output as streams, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from pydantic import JsonValue

from agent.filesystem import OutputStream
from gateway.errors import AirlockError, DeadlineExceeded, InvalidArgument, TooLarge
from gateway.services.process_messages import ended_message, failure, output_message
from gateway.serving.request_checks import check
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.program import Program, program_of
from gateway.tool_calls.program_calls import TOOL, ProgramRun, run_arguments
from gateway.tool_calls.requested_programs import RequestedPrograms, program_request
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import FinishedToolCall, ToolCalls
from gateway.v1 import process_service_pb2 as pb
from sandbox.process import ProgramSpec

STALL_LIMIT_S = 60.0
_CHUNKS_IN_FLIGHT = 4
_INPUT_LIMIT_BYTES = 512 * 1024
_OUTPUT_LIMIT_BYTES = 1024**3
_OUTPUT_LIMIT_MOST_BYTES = 1024**4
_Piece = tuple[OutputStream, bytes] | AirlockError | None
T = TypeVar("T")


class StreamedPrograms:
    """Runs programs whose bytes flow past. What starts one is a judged call, as for any tool."""

    def __init__(self, tool_calls: ToolCalls, requested: RequestedPrograms) -> None:
        self._tool_calls = tool_calls
        self._requested = requested

    async def run(
        self, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest]
    ) -> AsyncGenerator[pb.RunProgramResponse, None]:
        """Run a program to its end. Closing the generator earlier ends the program."""
        messages = aiter(request)
        run = await _opening(messages)
        program = program_of(run.program)
        spec = _program_spec(tenant, program, run)
        how: dict[str, JsonValue] = {
            "timeout_s": spec.timeout_s,
            "output_limit_bytes": spec.output_limit_bytes,
            "stdin": run.stdin,
        }
        request_ = program_request(run.request_id, "RunProgram", run.program.thread, program, how)
        earlier = None if request_ is None else await self._requested.ended(tenant, request_)
        if earlier is not None:
            yield ended_message(earlier, repeated=True)
            return
        pieces: asyncio.Queue[_Piece] = asyncio.Queue(_CHUNKS_IN_FLIGHT)
        made: list[ProgramRun] = []

        def executor(sandbox: ThreadSandbox) -> ProgramRun:
            made.append(ProgramRun(sandbox, program, spec, pieces, _input(messages) if run.stdin else None))
            return made[0]

        async def work() -> FinishedToolCall:
            arguments = run_arguments(program, spec.timeout_s, stdin=run.stdin)
            try:
                return await self._tool_calls.call(
                    tenant, run.program.thread, TOOL, arguments, executor=executor, request=request_
                )
            finally:
                await pieces.put(None)

        tasks: list[asyncio.Task[object]] = [call := asyncio.create_task(work())]
        if not run.stdin:
            tasks.append(asyncio.create_task(_refuse_input(messages, pieces)))
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, AirlockError):
                    raise piece
                yield output_message(*piece)
            finished = await call
            if request_ is not None and request_.taken:
                raise request_.in_progress()
            ended = made[0].ended if made else None
            if ended is None:
                raise failure(finished, made[0].error if made else None)
            yield ended_message(ended)
        finally:
            for task in tasks:
                task.cancel()
            while not pieces.empty():  # whoever waits for room must see that it was cancelled
                pieces.get_nowait()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _opening(messages: AsyncIterator[pb.RunProgramRequest]) -> pb.RunProgram:
    """Return what the first message asks for."""
    first = await _in_time(anext(messages, None))
    if first is None or first.WhichOneof("request") != "run":
        raise InvalidArgument("the first message must be `run`, with the program; its input follows in further ones")
    check(first)
    return first.run


async def _in_time(message: Awaitable[T]) -> T:
    """Return the first message; a peer that only connects must not stay for ever."""
    try:
        async with asyncio.timeout(STALL_LIMIT_S):
            return await message
    except TimeoutError:
        raise DeadlineExceeded(f"no message came for {STALL_LIMIT_S:g} s; the first must be `run`") from None


async def _input(messages: AsyncIterator[pb.RunProgramRequest]) -> AsyncIterator[bytes]:
    """Yield standard input. A client may rightly be silent for long: the program's time limit bounds it.

    Only `end` is its end: a client that died closes its stream as well.
    """
    async for message in messages:
        kind = message.WhichOneof("request")
        if kind == "end":
            return
        if kind != "stdin":
            raise InvalidArgument("only the first message may be `run`; the others are `stdin`, and `end` at the end")
        if len(message.stdin) > _INPUT_LIMIT_BYTES:
            raise TooLarge(f"stdin: {_INPUT_LIMIT_BYTES:,} bytes a message at most; send smaller pieces")
        if message.stdin:
            yield message.stdin
    raise InvalidArgument("the stream was closed without `end`, so the input is not whole; the program was ended")


async def _refuse_input(messages: AsyncIterator[pb.RunProgramRequest], pieces: asyncio.Queue[_Piece]) -> None:
    """End the call of a client that sends input nobody would read."""
    with contextlib.suppress(StopAsyncIteration):
        await anext(messages)
        await pieces.put(InvalidArgument("input came, but `run` did not say that it would: set stdin"))


def _program_spec(tenant: Tenant, program: Program, run: pb.RunProgram) -> ProgramSpec:
    return ProgramSpec(
        program.argv_bytes(),
        env=program.env,
        cwd=program.cwd,
        timeout_s=_timeout_s(tenant, run.timeout_ms),
        output_limit_bytes=_output_limit_bytes(run.output_limit_bytes),
    )


def _timeout_s(tenant: Tenant, asked_ms: int) -> float:
    """Return a program's time limit; 0 asks for the longest that the policy lets one execute take."""
    most_s = tenant.policy.document.limits.timeout_s
    if asked_ms > most_s * 1000:
        raise InvalidArgument(
            f"timeout_ms: {asked_ms:,} is more than the policy's limits.timeout_s, {most_s:g} s; ask for less, start "
            "it in the background, or ask the operator"
        )
    return asked_ms / 1000 or most_s


def _output_limit_bytes(asked_bytes: int) -> int:
    if asked_bytes > _OUTPUT_LIMIT_MOST_BYTES:
        raise InvalidArgument(f"output_limit_bytes: {_OUTPUT_LIMIT_MOST_BYTES:,} at most")
    return asked_bytes or _OUTPUT_LIMIT_BYTES
