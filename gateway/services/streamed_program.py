"""RunProgram: one program in a thread's sandbox, with its input and output as streams."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from pydantic import JsonValue

from agent.filesystem import OutputStream
from gateway.errors import AirlockError, InvalidArgument, TooLarge
from gateway.services.messages import ended_message, failure, in_time, queued
from gateway.serving.request_checks import check
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.program_calls import TOOL, Program, ProgramRun, program_of, run_arguments
from gateway.tool_calls.requested_calls import RequestedPrograms, program_request
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from gateway.v1 import process_service_pb2 as pb
from sandbox.protocols import ProgramSpec

_CHUNKS_IN_FLIGHT = 4
_INPUT_LIMIT_BYTES = 512 * 1024
_OUTPUT_LIMIT_BYTES = 1024**3
_OUTPUT_LIMIT_MOST_BYTES = 1024**4
_Piece = tuple[OutputStream, bytes] | AirlockError


async def streamed_program(
    tool_calls: ToolCalls, requested: RequestedPrograms, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest]
) -> AsyncGenerator[pb.RunProgramResponse, None]:
    """Run a program to its end; closing the generator earlier ends the program. Starting it is a judged call."""
    messages = aiter(request)
    run = await _opening(messages)
    program = program_of(run.program)
    spec = _program_spec(tenant, program, run)
    how: dict[str, JsonValue] = {"timeout_s": spec.timeout_s, "output_limit_bytes": spec.output_limit_bytes}
    how["stdin"] = run.stdin
    request_ = program_request(run.request_id, "RunProgram", run.program.thread, program, how)
    earlier = None if request_ is None else await requested.ended(tenant, request_)
    if earlier is not None:
        yield ended_message(earlier, repeated=True)
        return
    pieces: asyncio.Queue[_Piece | None] = asyncio.Queue(_CHUNKS_IN_FLIGHT)
    started = ProgramRun(program, spec, pieces, _input(messages) if run.stdin else None)

    async def work() -> FinishedToolCall:
        arguments = run_arguments(program, spec.timeout_s, stdin=run.stdin)
        try:
            new = NewCall(run.program.thread, TOOL, arguments, executor=started, request=request_)
            return await tool_calls.call(tenant, new)
        finally:
            await pieces.put(None)

    call = asyncio.create_task(work())
    tasks: list[asyncio.Task[Any]] = [call]
    if not run.stdin:
        tasks.append(asyncio.create_task(_refuse_input(messages, pieces)))
    streamed: AbstractAsyncContextManager[AsyncIterator[_Piece]] = queued(pieces, *tasks)
    async with streamed as output:
        async for piece in output:
            if isinstance(piece, AirlockError):
                raise piece
            stream, data = piece
            yield pb.RunProgramResponse(stderr=data) if stream == "stderr" else pb.RunProgramResponse(stdout=data)
        finished = await call
        if request_ is not None and request_.taken:
            raise request_.in_progress()
        if started.ended is None:
            raise failure(finished, started.error)
        yield ended_message(started.ended)


async def _opening(messages: AsyncIterator[pb.RunProgramRequest]) -> pb.RunProgram:
    first = await in_time(anext(messages, None), "no message came", "the first must be `run`")
    if first is None or first.WhichOneof("request") != "run":
        raise InvalidArgument("the first message must be `run`, with the program; its input follows in further ones")
    check(first)
    return first.run


async def _input(messages: AsyncIterator[pb.RunProgramRequest]) -> AsyncIterator[bytes]:
    """Yield standard input. A client may be silent for long: the program's time limit bounds it.

    Only `end` ends the input: a client that dies closes its stream as well.
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


async def _refuse_input(messages: AsyncIterator[pb.RunProgramRequest], pieces: asyncio.Queue[_Piece | None]) -> None:
    """Fail the call of a client that sends input that is not read."""
    with contextlib.suppress(StopAsyncIteration):
        await anext(messages)
        await pieces.put(InvalidArgument("input was sent, but `run` did not announce it: set stdin"))


def _program_spec(tenant: Tenant, program: Program, run: pb.RunProgram) -> ProgramSpec:
    """Return what to run; 0 requests the longest time that the policy allows, and the default limit of output."""
    most_s = tenant.policy.document.limits.timeout_s
    if run.timeout_ms > most_s * 1000:
        raise InvalidArgument(
            f"timeout_ms: {run.timeout_ms:,} is more than the policy's limits.timeout_s, {most_s:g} s; ask for less, "
            "start it in the background, or ask the operator"
        )
    if run.output_limit_bytes > _OUTPUT_LIMIT_MOST_BYTES:
        raise InvalidArgument(f"output_limit_bytes: {_OUTPUT_LIMIT_MOST_BYTES:,} at most")
    return ProgramSpec(
        program.argv_bytes(),
        env=program.env,
        cwd=program.cwd,
        timeout_s=run.timeout_ms / 1000 or most_s,
        output_limit_bytes=run.output_limit_bytes or _OUTPUT_LIMIT_BYTES,
    )
