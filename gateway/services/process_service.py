"""ProcessService: programs with streams, and background processes, in a thread's sandbox.

What starts something is a judged call. What follows is about what the tenant itself started, in its own thread: it is
bound to both, not judged again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import structlog

from agent.filesystem import OutputStream
from gateway.calls.program import program_of
from gateway.calls.program_calls import TOOL, ProcessStart, ProgramRun, run_arguments, start_arguments
from gateway.calls.thread_sandbox import ThreadSandbox
from gateway.calls.tool_calls import FinishedToolCall, ToolCalls
from gateway.clock import MakeId, make_id
from gateway.errors import (
    AirlockError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PermissionDenied,
    TooLarge,
    Unavailable,
)
from gateway.identity.principal import actor
from gateway.services.process_messages import ended_message, output_message, process_message
from gateway.serving.edge import Authenticator, Context, streaming, unary
from gateway.shares import Shares
from gateway.storage.audit_store import AuditEntry
from gateway.tenants import Tenant
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb

STALL_LIMIT_S = 60.0
_CHUNKS_IN_FLIGHT = 4
_INPUT_LIMIT_BYTES = 512 * 1024
# Each holds its bytes here until the process reads.
_WRITES_OF_A_TENANT = 16
_WRITE_LIMIT_BYTES = 1024 * 1024
_OUTPUT_LIMIT_BYTES = 1024**3
_OUTPUT_LIMIT_MOST_BYTES = 1024**4
_TIMEOUT_LIMIT_MS = 7 * 86_400_000
_WAIT_LIMIT_S = 60.0
# A page of output that is followed is waited for so long; each wait shows the thread's sandbox to be in use.
_FOLLOW_WAIT_S = 20.0
_EMPTY_PAGE_PAUSE_S = 0.05
# The answer to a wait must be on its way before the caller's own deadline.
_ANSWER_S = 1.0
_ROWS, _COLUMNS, _SIZE_LIMIT = 24, 80, 4096
_SIGNAL_LIMIT = 64
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_Piece = tuple[OutputStream, bytes] | AirlockError | None
log = structlog.get_logger(__name__)
T = TypeVar("T")


class ProcessService(grpc_pb.ProcessServiceServicer):
    """Runs programs."""

    scope = "tool"
    works = ("RunProgram",)
    waits = ("WaitProcess",)

    def __init__(self, tool_calls: ToolCalls, authenticate: Authenticator, ids: MakeId = make_id) -> None:
        self._tool_calls = tool_calls
        self._writes = Shares(_WRITES_OF_A_TENANT, "writes to processes")
        self._ids = ids
        self.authenticate = authenticate

    @streaming
    async def RunProgram(  # noqa: N802
        self, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest], context: Context
    ) -> AsyncIterator[pb.RunProgramResponse]:
        """Run a program; a client that goes away ends it."""
        del context
        messages = aiter(request)
        run = await _opening(messages)
        program = program_of(run.program)
        timeout_s = _timeout_s(tenant, run.timeout_ms)
        output_limit_bytes = _output_limit_bytes(run.output_limit_bytes)
        pieces: asyncio.Queue[_Piece] = asyncio.Queue(_CHUNKS_IN_FLIGHT)
        made: list[ProgramRun] = []

        def executor(sandbox: ThreadSandbox) -> ProgramRun:
            stdin = _input(messages) if run.stdin else None
            made.append(
                ProgramRun(
                    sandbox,
                    program,
                    pieces,
                    timeout_s=timeout_s,
                    output_limit_bytes=output_limit_bytes,
                    stdin=stdin,
                )
            )
            return made[0]

        async def work() -> FinishedToolCall:
            arguments = run_arguments(program, timeout_s, stdin=run.stdin)
            try:
                return await self._tool_calls.call(tenant, run.program.thread, TOOL, arguments, executor=executor)
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
            ended = made[0].ended if made else None
            if ended is None:
                raise _failure(finished, made[0].error if made else None)
            yield ended_message(ended)
        finally:
            for task in tasks:
                task.cancel()
            while not pieces.empty():  # whoever waits for room must see that it was cancelled
                pieces.get_nowait()
            await asyncio.gather(*tasks, return_exceptions=True)

    @unary
    async def StartProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.StartProcessRequest, context: Context
    ) -> pb.StartProcessResponse:
        """Start a background process."""
        del context
        program = program_of(request.program)
        process_id = _known_id(request.id) if request.id else self._ids("proc")
        if request.terminal and request.merge_stderr:
            raise InvalidArgument("merge_stderr: a terminal has one stream already; leave it out")
        if request.HasField("size") and not request.terminal:
            raise InvalidArgument("size: only a terminal has one; set terminal or leave it out")
        rows, columns = _size(request.size) if request.HasField("size") else (_ROWS, _COLUMNS)
        if request.timeout_ms > _TIMEOUT_LIMIT_MS:
            raise InvalidArgument(f"timeout_ms: {_TIMEOUT_LIMIT_MS:,} at most; 0 means none")
        made: list[ProcessStart] = []

        def executor(sandbox: ThreadSandbox) -> ProcessStart:
            made.append(
                ProcessStart(
                    sandbox,
                    program,
                    process_id,
                    terminal=request.terminal,
                    rows=rows,
                    columns=columns,
                    stdin=request.stdin,
                    merge_stderr=request.merge_stderr,
                    timeout_s=request.timeout_ms / 1000 or None,
                )
            )
            return made[0]

        arguments = start_arguments(program, process_id, terminal=request.terminal, stdin=request.stdin)
        finished = await self._tool_calls.call(tenant, request.program.thread, TOOL, arguments, executor=executor)
        process = made[0].process if made else None
        if process is None:
            raise _failure(finished, made[0].error if made else None)
        return pb.StartProcessResponse(process=process_message(process))

    @unary
    async def ListProcesses(  # noqa: N802
        self, tenant: Tenant, request: pb.ListProcessesRequest, context: Context
    ) -> pb.ListProcessesResponse:
        """List a thread's background processes."""
        del context
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        found = await sandbox.list_processes()
        return pb.ListProcessesResponse(
            processes=[process_message(process) for process in found.processes], strays=found.strays
        )

    @streaming
    async def ReadProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.ReadProcessRequest, context: Context
    ) -> AsyncIterator[pb.ReadProcessResponse]:
        """Stream output from an offset: what there is now, or with follow until there can be no more."""
        del context
        process_id = _known_id(request.id)
        reader = await self._tool_calls.process_reader(tenant, request.thread)
        offset, stop_at = request.offset, -1
        while True:
            page = await reader.read(
                process_id,
                stderr=request.stderr,
                offset=offset,
                wait_s=_FOLLOW_WAIT_S if request.follow else 0.0,
            )
            if page.data:
                yield pb.ReadProcessResponse(offset=page.offset, data=page.data)
            elif request.follow and not page.end:
                await asyncio.sleep(_EMPTY_PAGE_PAUSE_S)  # a daemon that does not wait must not spin the gateway
            offset = page.offset + len(page.data)
            if stop_at < 0:
                stop_at = page.size_bytes  # else a process that writes as fast as it is read would have no end
            if page.end or (not request.follow and (not page.data or offset >= stop_at)):
                return

    @unary
    async def WriteProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.WriteProcessRequest, context: Context
    ) -> pb.WriteProcessResponse:
        """Write to standard input; answered when the process' pipe has taken it."""
        _known_id(request.id)
        if len(request.data) > _WRITE_LIMIT_BYTES:
            raise TooLarge(f"data: {_WRITE_LIMIT_BYTES:,} bytes at most; write the rest in further calls")
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        with self._writes.hold(tenant.name):
            return await self._write(sandbox, tenant, request, context)

    async def _write(
        self, sandbox: ThreadSandbox, tenant: Tenant, request: pb.WriteProcessRequest, context: Context
    ) -> pb.WriteProcessResponse:
        process_id = request.id
        log.debug("process input", **_whose(tenant, request.thread, process_id), bytes=len(request.data))
        process = await sandbox.write_process(process_id, request.data, end=request.end, wait_s=_wait_s(context))
        await self._tell(tenant, request.thread, "write", process_id, len(request.data))
        return pb.WriteProcessResponse(process=process_message(process))

    @unary
    async def ResizeProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.ResizeProcessRequest, context: Context
    ) -> pb.ResizeProcessResponse:
        """Change a window's size."""
        del context
        process_id = _known_id(request.id)
        rows, columns = _size(request.size)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.resize_process(process_id, rows, columns)
        await self._tell(tenant, request.thread, "resize", process_id)
        return pb.ResizeProcessResponse(process=process_message(process))

    @unary
    async def SignalProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.SignalProcessRequest, context: Context
    ) -> pb.SignalProcessResponse:
        """Send a signal to a process."""
        del context
        process_id = _known_id(request.id)
        if not 1 <= request.signal <= _SIGNAL_LIMIT:
            raise InvalidArgument(f"signal: a number of Linux is expected, 1 to {_SIGNAL_LIMIT}; 15 asks to end")
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        log.debug("process signal", **_whose(tenant, request.thread, process_id), signal=request.signal)
        process = await sandbox.signal_process(process_id, request.signal, tree=request.tree)
        await self._tell(tenant, request.thread, "signal", process_id, signal=request.signal, tree=request.tree)
        return pb.SignalProcessResponse(process=process_message(process))

    @unary
    async def KillStrays(  # noqa: N802
        self, tenant: Tenant, request: pb.KillStraysRequest, context: Context
    ) -> pb.KillStraysResponse:
        """Kill what commands left behind."""
        del context
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        log.debug("strays are killed", tenant=tenant.name, thread=request.thread or "default")
        left = await sandbox.kill_strays()
        await self._tell(tenant, request.thread, "kill_strays", left=left)
        return pb.KillStraysResponse(left=left)

    @unary
    async def WaitProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.WaitProcessRequest, context: Context
    ) -> pb.WaitProcessResponse:
        """Wait for the end of a process."""
        process_id = _known_id(request.id)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.wait_process(process_id, wait_s=_wait_s(context))
        return pb.WaitProcessResponse(process=process_message(process))

    @unary
    async def RemoveProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.RemoveProcessRequest, context: Context
    ) -> pb.RemoveProcessResponse:
        """Kill what a process started, and forget it."""
        del context
        process_id = _known_id(request.id)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.remove_process(process_id)
        await self._tell(tenant, request.thread, "remove", process_id)
        return pb.RemoveProcessResponse(process=process_message(process))

    async def _tell(
        self, tenant: Tenant, thread: str, operation: str, process_id: str = "", size_bytes: int = 0, **facts: int
    ) -> None:
        """Tell the audit of what was done to a process, before the caller hears of it."""
        named = {"process_id": process_id} if process_id else {}
        entry = AuditEntry(
            tenant.name,
            "process",
            actor(),
            thread=thread or "default",
            tool=TOOL,
            verdict="allow",
            outcome="completed",
            size_bytes=size_bytes,
            details={"operation": operation, **named, **facts},
        )
        await self._tool_calls.audit.write(entry)


async def _opening(messages: AsyncIterator[pb.RunProgramRequest]) -> pb.RunProgram:
    """Return what the first message asks for."""
    first = await _in_time(anext(messages, None))
    if first is None or first.WhichOneof("request") != "run":
        raise InvalidArgument("the first message must be `run`, with the program; its input follows in further ones")
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


def _known_id(process_id: str) -> str:
    if not _ID.fullmatch(process_id):
        raise InvalidArgument(f"id: {process_id[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ - are expected")
    return process_id


def _size(size: pb.WindowSize) -> tuple[int, int]:
    if not (1 <= size.rows <= _SIZE_LIMIT and 1 <= size.columns <= _SIZE_LIMIT):
        raise InvalidArgument(f"size: rows and columns, each 1 to {_SIZE_LIMIT:,}")
    return size.rows, size.columns


def _wait_s(context: Context) -> float:
    """Return how long to wait, so that the answer is there before the caller's deadline."""
    left_s: float | None = context.time_remaining()
    return _WAIT_LIMIT_S if left_s is None else min(_WAIT_LIMIT_S, max(left_s - _ANSWER_S, left_s / 2, 0.0))


def _whose(tenant: Tenant, thread: str, process_id: str) -> dict[str, str]:
    return {"tenant": tenant.name, "thread": thread or "default", "process": process_id}


def _failure(finished: FinishedToolCall, error: Exception | None) -> Exception:
    """Return why a call that started nothing failed."""
    finished.raise_waiting()
    verdict = finished.execution.verdict
    if finished.execution.blocked and verdict is not None:
        return PermissionDenied(f"{verdict.reason} (rule {verdict.rule})", rule=verdict.rule)
    if error is not None:
        return error
    if finished.result.is_error:
        return Unavailable(finished.result.text())
    return Internal("a hook took the call over; nothing ran")
