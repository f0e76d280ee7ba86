"""ProcessService: programs with streams, and background processes, in a thread's sandbox.

Starting one is a judged call. The other RPCs act on processes that the tenant itself started, in the same thread, so
policy does not judge them again. Those that are audited count against the tenant's rate limit, as calls do.
"""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from pydantic import JsonValue

from agent.filesystem import OutputStream
from airlock.v1 import process_service_pb2 as pb
from gateway.audit.call_audit import process_entry
from gateway.errors import AirlockError, Conflict, InvalidArgument, TooLarge
from gateway.mcp_servers.places import RESERVED_IDS, is_program
from gateway.services.messages import ended_message, failure, in_time, process_message, queued
from gateway.serving.edge import Authenticator, deadline_s, streaming, unary
from gateway.serving.request_checks import check
from gateway.support.clock import make_id
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.quotas import TenantLimit
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.moved_bytes import counted_bytes
from gateway.tool_calls.program_calls import (
    TOOL,
    ProcessStart,
    Program,
    ProgramRun,
    program_of,
    run_arguments,
    start_arguments,
)
from gateway.tool_calls.requested_calls import RequestedPrograms, made_process_id, program_request
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from gateway.v1 import process_service_pb2_grpc as grpc_pb
from sandbox.client.replies import PROCESSES_LIMIT
from sandbox.interpreter.interpreter import is_interpreter
from sandbox.protocols import Process, ProcessSpec, ProgramSpec

_INPUT_LIMIT_BYTES = 512 * 1024
_OUTPUT_LIMIT_BYTES, _OUTPUT_LIMIT_MOST_BYTES = 1024**3, 1024**4
_Piece = tuple[OutputStream, bytes] | AirlockError
# A write stays in memory here until the process reads.
_WRITES_OF_A_TENANT = 16
_WRITE_LIMIT_BYTES = 1024 * 1024
_TIMEOUT_LIMIT_MS = 7 * 86_400_000
_WAIT_LIMIT_S = 60.0
# How long to wait for a page of followed output; each wait marks the thread's sandbox as in use.
_FOLLOW_WAIT_S = 20.0
# The answer to a wait must be sent before the caller's deadline.
_ANSWER_S = 1.0
_ROWS, _COLUMNS, _SIZE_LIMIT = 24, 80, 4096
_SIGNAL_LIMIT = 64
# What makes a request to start a program another one, besides the program and the size of its terminal.
_HOW_STARTED = ("id", "terminal", "stdin", "merge_stderr", "timeout_ms")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
log = structlog.get_logger(__name__)


class _OfProcess(Protocol):
    thread: str
    id: str


@dataclass(eq=False)
class ProcessService(grpc_pb.ProcessServiceServicer):
    """Runs programs."""

    scope = "tool"
    works = ("RunProgram",)
    waits = ("WaitProcess",)

    tool_calls: ToolCalls
    authenticate: Authenticator
    requested: RequestedPrograms
    _writes: TenantLimit = field(default_factory=lambda: TenantLimit(_WRITES_OF_A_TENANT, "writes to processes"))

    @streaming
    async def RunProgram(
        self, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest]
    ) -> AsyncIterator[pb.RunProgramResponse]:
        """Run a program to its end, or until the client disconnects. Starting it is a judged call."""
        messages = aiter(request)
        run = await _opening(messages)
        program = program_of(run.program)
        spec = _program_spec(tenant, program, run)
        how: dict[str, JsonValue] = {"timeout_s": spec.timeout_s, "output_limit_bytes": spec.output_limit_bytes}
        how["stdin"] = run.stdin
        request_ = program_request(run.request_id, "RunProgram", run.program.thread, program, how)
        earlier = None if request_ is None else await self.requested.ended(tenant, request_)
        if earlier is not None:
            yield ended_message(earlier, repeated=True)
            return
        pieces: asyncio.Queue[_Piece | None] = asyncio.Queue(4)  # as many pieces of output wait for a slow reader
        started = ProgramRun(program, spec, pieces, _input(messages) if run.stdin else None)

        async def work() -> FinishedToolCall:
            arguments = run_arguments(program, spec.timeout_s, stdin=run.stdin)
            try:
                new = NewCall(run.program.thread, TOOL, arguments, executor=started, request=request_)
                return await self.tool_calls.call(tenant, new)
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

    @unary
    async def StartProcess(self, tenant: Tenant, request: pb.StartProcessRequest) -> pb.StartProcessResponse:
        program = program_of(request.program)
        rows, columns = _check_start(request)
        how_started: dict[str, JsonValue] = {name: getattr(request, name) for name in _HOW_STARTED}
        how_started["size"] = [rows, columns]
        thread = request.program.thread
        request_ = program_request(request.request_id, "StartProcess", thread, program, how_started)
        process_id = request.id or (make_id("proc") if request_ is None else made_process_id(tenant, request_))
        sandbox = await self.tool_calls.sandbox(tenant, thread)
        if request_ is not None:
            process = await self.requested.process(tenant, request_, sandbox, process_id, program.argv_bytes())
            if process is not None:
                return pb.StartProcessResponse(process=process_message(process))
        spec = ProcessSpec(
            process_id,
            program.argv_bytes(),
            env=program.env,
            cwd=program.cwd,
            terminal=request.terminal,
            rows=rows,
            columns=columns,
            stdin=request.stdin,
            merge_stderr=request.merge_stderr,
            timeout_s=request.timeout_ms / 1000 or None,
        )
        start = ProcessStart(program, spec)
        arguments = start_arguments(program, request.id, terminal=request.terminal, stdin=request.stdin)
        new = NewCall(thread, TOOL, arguments, executor=start, request=request_)
        finished = await self.tool_calls.call(tenant, new)
        if request_ is not None and request_.taken:
            raise request_.in_progress()
        process = start.process
        if request_ is not None and not request.id and isinstance(start.error, Conflict):
            # No other request makes this id: an attempt whose caller went away has started it just now.
            process = await self.requested.kept(sandbox, process_id, program.argv_bytes())
        if process is None:
            raise failure(finished, start.error)
        return pb.StartProcessResponse(process=process_message(process))

    @unary
    async def ListProcesses(self, tenant: Tenant, request: pb.ListProcessesRequest) -> pb.ListProcessesResponse:
        wanted = request.running if request.HasField("running") else None
        size = page_size(request.page_size, usual=PROCESSES_LIMIT)
        query = ("processes", tenant.name, request.thread, wanted)
        after = place_of(request.page_token, *query)
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        found = await sandbox.list_processes()
        processes = [one for one in found.processes if wanted is None or one.running == wanted]
        rest = [one for one in sorted(processes, key=_place) if after is None or _place(one) > after]
        shown, token = paged(rest, size, _place, *query)
        return pb.ListProcessesResponse(
            processes=[process_message(one) for one in shown], strays=found.strays, next_page_token=token
        )

    @streaming
    async def ReadProcess(
        self, tenant: Tenant, request: pb.ReadProcessRequest
    ) -> AsyncIterator[pb.ReadProcessResponse]:
        """Stream output from an offset: what there is now or, with follow, until there can be no more."""
        process_id = _own_id(request.id)
        reader = await self.tool_calls.process_reader(tenant, request.thread)
        offset, stop_at = request.offset, -1
        async with counted_bytes(self.tool_calls.quotas, tenant) as moved:
            while True:
                wait_s = _FOLLOW_WAIT_S if request.follow else 0.0
                page = await reader.read(process_id, stderr=request.stderr, offset=offset, wait_s=wait_s)
                if page.data:
                    await moved(len(page.data))  # first: a caller may leave at any piece
                    yield pb.ReadProcessResponse(offset=page.offset, data=page.data)
                elif request.follow and not page.end:
                    await asyncio.sleep(0.05)  # a daemon that does not wait must not spin the gateway
                offset = page.offset + len(page.data)
                if stop_at < 0:
                    stop_at = page.size_bytes  # else a process that writes as fast as it is read would never end
                if page.end or (not request.follow and (not page.data or offset >= stop_at)):
                    return

    @unary
    async def WriteProcess(self, tenant: Tenant, request: pb.WriteProcessRequest) -> pb.WriteProcessResponse:
        """Write to standard input; answered when the process's pipe has taken the data."""
        if len(request.data) > _WRITE_LIMIT_BYTES:
            raise TooLarge(f"data: {_WRITE_LIMIT_BYTES:,} bytes at most; write the rest in further calls")

        async def write(sandbox: ThreadSandbox) -> Process:
            log.debug("process input", **_whose(tenant, request.thread, request.id), bytes=len(request.data))
            offset = request.offset if request.HasField("offset") else None
            await moved(len(request.data))  # also what the process does not take
            return await sandbox.write_process(
                request.id,
                request.data,
                end=request.end,
                wait_s=_wait_s(),
                offset=offset,
                request_id=request.request_id,
            )

        _own_id(request.id, writes=True)
        size_bytes = len(request.data)
        async with counted_bytes(self.tool_calls.quotas, tenant, size_bytes) as moved:
            with self._writes.hold(tenant.name):
                process = await self._changed(tenant, request, "write", write, size_bytes, only_ends=not size_bytes)
        return pb.WriteProcessResponse(process=process)

    async def _changed(
        self,
        tenant: Tenant,
        request: _OfProcess,
        kind: str,
        change: Callable[[ThreadSandbox], Awaitable[Process]],
        size_bytes: int = 0,
        *,
        only_ends: bool = False,
        **details: int,
    ) -> pb.Process:
        """Change a process, within the tenant's rate limit, record it in the audit, and return the process."""
        _known_id(request.id)
        await self.tool_calls.take_place(tenant, only_ends=only_ends)
        process = await change(await self.tool_calls.sandbox(tenant, request.thread))
        await self.tool_calls.record(process_entry(tenant, request.thread, kind, request.id, size_bytes, **details))
        return process_message(process)

    @unary
    async def ResizeProcess(self, tenant: Tenant, request: pb.ResizeProcessRequest) -> pb.ResizeProcessResponse:
        size = _size(request.size)
        process = await self._changed(tenant, request, "resize", lambda box: box.resize_process(request.id, *size))
        return pb.ResizeProcessResponse(process=process)

    @unary
    async def SignalProcess(self, tenant: Tenant, request: pb.SignalProcessRequest) -> pb.SignalProcessResponse:
        if not 1 <= request.signal <= _SIGNAL_LIMIT:
            raise InvalidArgument(f"signal: a number of Linux is expected, 1 to {_SIGNAL_LIMIT}; 15 asks to end")

        async def send(sandbox: ThreadSandbox) -> Process:
            log.debug("process signal", **_whose(tenant, request.thread, request.id), signal=request.signal)
            return await sandbox.signal_process(request.id, request.signal, tree=request.tree)

        kills = request.signal == signal.SIGKILL and not request.tree
        how = {"signal": request.signal, "tree": request.tree}
        process = await self._changed(tenant, request, "signal", send, only_ends=kills, **how)
        return pb.SignalProcessResponse(process=process)

    @unary
    async def KillStrays(self, tenant: Tenant, request: pb.KillStraysRequest) -> pb.KillStraysResponse:
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        log.debug("strays are killed", tenant=tenant.name, thread=request.thread or "default")
        await self.tool_calls.take_place(tenant, only_ends=True)
        found, left = await sandbox.kill_strays()
        if found:
            await self.tool_calls.record(process_entry(tenant, request.thread, "kill_strays", left=left))
        return pb.KillStraysResponse(left=left)

    @unary
    async def WaitProcess(self, tenant: Tenant, request: pb.WaitProcessRequest) -> pb.WaitProcessResponse:
        process_id = _known_id(request.id)
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.wait_process(process_id, wait_s=_wait_s())
        return pb.WaitProcessResponse(process=process_message(process))

    @unary
    async def RemoveProcess(self, tenant: Tenant, request: pb.RemoveProcessRequest) -> pb.RemoveProcessResponse:
        process = await self._changed(
            tenant, request, "remove", lambda box: box.remove_process(request.id), only_ends=True
        )
        return pb.RemoveProcessResponse(process=process)


def _place(process: Process) -> tuple[int, str]:
    return process.started_ns, process.id


def _check_start(request: pb.StartProcessRequest) -> tuple[int, int]:
    """Check what goes with the program; return the rows and columns of a terminal."""
    if request.id:
        _own_id(request.id, writes=True)
    if request.terminal and request.merge_stderr:
        raise InvalidArgument("merge_stderr: a terminal has one stream already; leave it out")
    if request.HasField("size") and not request.terminal:
        raise InvalidArgument("size: only a terminal has one; set terminal or leave it out")
    if request.timeout_ms > _TIMEOUT_LIMIT_MS:
        raise InvalidArgument(f"timeout_ms: {_TIMEOUT_LIMIT_MS:,} at most; 0 means none")
    return _size(request.size) if request.HasField("size") else (_ROWS, _COLUMNS)


def _known_id(process_id: str) -> str:
    if not _ID.fullmatch(process_id):
        raise InvalidArgument(f"id: {process_id[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ - are expected")
    return process_id


def _own_id(process_id: str, *, writes: bool = False) -> str:
    """Return the id of a process that is none of the gateway's, whose input a policy has to judge: code, or calls."""
    shown = f"id: {_known_id(process_id)!r}"
    if is_interpreter(process_id):
        raise InvalidArgument(f"{shown} is of execute_python: run code by that tool, or remove the process")
    if writes and is_program(process_id):
        raise InvalidArgument(f"{shown}: {RESERVED_IDS}: call their tools, or choose another id")
    return process_id


def _size(size: pb.WindowSize) -> tuple[int, int]:
    if not (1 <= size.rows <= _SIZE_LIMIT and 1 <= size.columns <= _SIZE_LIMIT):
        raise InvalidArgument(f"size: rows and columns, each 1 to {_SIZE_LIMIT:,}")
    return size.rows, size.columns


def _wait_s() -> float:
    """Return how long to wait, so that the answer is sent before the caller's deadline."""
    deadline = deadline_s()
    if deadline is None:
        return _WAIT_LIMIT_S
    left_s = deadline - asyncio.get_running_loop().time()
    return min(_WAIT_LIMIT_S, max(left_s - _ANSWER_S, left_s / 2, 0.0))


def _whose(tenant: Tenant, thread: str, process_id: str) -> dict[str, str]:
    return {"tenant": tenant.name, "thread": thread or "default", "process": process_id}


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
